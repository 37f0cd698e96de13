# cmake --install: the program, the library with its public headers, and the package file that
# find_package(bevatron) reads. Packages for Debian: `cpack -G DEB` in the build folder.
#
# What is public is said by BEV_PUBLIC_HEADERS; headers that these include come along, no others.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(BEV_PUBLIC_HEADERS
    autograd/recompute.h backend/cpu/cpu_kernels.h base/thread_pool.h bridge/hf_model.h chat/chat_template.h
    checkpoint/local_tier.h checkpoint/restore.h checkpoint/saver.h
    comm/world.h data/batch_file.h data/mock_dataset.h data/sample_order.h infer/generate.h kernels/tables.h models/model.h models/word_embeddings.h
    nn/cross_attention.h nn/mlp.h ops/collective.h ops/elementwise.h ops/embedding.h ops/linear.h
    ops/loss.h ops/norm.h ops/objective.h ops/parallel_linear.h ops/sequence_gather.h ops/token_log_probs.h
    optim/loss_scaler.h optim/lr_schedule.h optim/optimizer.h parallel/engine.h
    parallel/pipeline/schedule_player.h tokenizer/tokenizer.h)
if(BEV_CUDA)
  list(APPEND BEV_PUBLIC_HEADERS backend/cuda/device.h)
endif()

# The headers and all that they include, relative to src/.
function(bev_header_closure out)
  set(found)
  set(todo ${ARGN})
  while(todo)
    list(POP_FRONT todo header)
    if(header IN_LIST found)
      continue()
    endif()
    list(APPEND found ${header})
    file(STRINGS ${CMAKE_SOURCE_DIR}/src/${header} lines REGEX "^#include \"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
      list(APPEND todo ${included})
    endforeach()
  endwhile()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

bev_header_closure(headers ${BEV_PUBLIC_HEADERS})
foreach(header IN LISTS headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES src/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/bevatron/${folder}
          COMPONENT library)
endforeach()

# All that the program is made of but the program's own part.
add_library(bevatron_library INTERFACE)
set_target_properties(bevatron_library PROPERTIES EXPORT_NAME bevatron)
bev_target_names(backends ${BEV_BACKENDS})
target_link_libraries(bevatron_library INTERFACE bev_train ${backends})
target_compile_features(bevatron_library INTERFACE cxx_std_20)

get_property(libraries GLOBAL PROPERTY BEV_LIBRARIES)
list(REMOVE_ITEM libraries bev_app bev_serve)
install(TARGETS bevatron_library ${libraries} EXPORT bevatron
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/bevatron COMPONENT library)
install(EXPORT bevatron NAMESPACE bevatron:: FILE bevatronTargets.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/bevatron COMPONENT library)
configure_package_config_file(
  cmake/bevatronConfig.cmake.in ${CMAKE_BINARY_DIR}/generated/bevatronConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/bevatron NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/bevatronConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/bevatronConfig.cmake
              ${CMAKE_BINARY_DIR}/generated/bevatronConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/bevatron COMPONENT library)

install(TARGETS bevatron RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
if(BEV_MPI)
  # Where the program looks for it (src/comm/process/mpi_link.cpp).
  install(TARGETS bev_mpi LIBRARY DESTINATION lib/bevatron COMPONENT program)
endif()

# The manual page and the completion of shells, which the program makes from its flags.
foreach(file "man/man1/bevatron.1:help --man"
             "bash-completion/completions/bevatron:completion bash"
             "zsh/vendor-completions/_bevatron:completion zsh"
             "fish/vendor_completions.d/bevatron.fish:completion fish")
  string(REPLACE ":" ";" parts ${file})
  list(GET parts 0 path)
  list(GET parts 1 words)
  string(REPLACE " " "\" \"" words ${words})
  install(CODE "
    set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${path}\")
    cmake_path(GET file PARENT_PATH folder)
    file(MAKE_DIRECTORY \"\${folder}\")
    message(STATUS \"Installing: \${file}\")
    execute_process(COMMAND \"$<TARGET_FILE:bevatron>\" \"${words}\" OUTPUT_FILE \"\${file}\"
                    COMMAND_ERROR_IS_FATAL ANY)"
          COMPONENT program)
endforeach()

set(CPACK_PACKAGE_NAME bevatron)
set(CPACK_PACKAGE_VENDOR Bevatron)
set(CPACK_PACKAGE_CONTACT "The developers of Bevatron")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains transformer models, on a CPU or many GPUs")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL program library)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip)  # little larger than xz, and made in seconds
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME bevatron)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libbevatron-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
    "g++, libdnnl-dev, nlohmann-json3-dev, libyaml-cpp-dev, libfmt-dev, libpcre2-dev, libutf8proc-dev, zlib1g-dev, libzstd-dev")
include(CPack)
