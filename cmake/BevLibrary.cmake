# How a folder under src/ becomes a target.
#
#   bev_library(nn DEPENDS ops)   static library bev_nn of all sources below src/nn, include root src/
#   bev_cpu_backend, bev_cuda_backend, bev_server_library, bev_program, bev_mpi_module, bev_benchmarks: one use each, in the root list
#
# A folder without sources becomes an INTERFACE library, so headers-only folders need no special case.

# The precompiled STL header, built once and reused by every library.
file(WRITE ${CMAKE_BINARY_DIR}/generated/pch.cpp.in "// Owner of a precompiled header.\n")
configure_file(${CMAKE_BINARY_DIR}/generated/pch.cpp.in ${CMAKE_BINARY_DIR}/generated/pch.cpp COPYONLY)
set(BEV_PCH_HEADERS
    <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring>
    <filesystem> <fstream> <functional> <map> <memory> <mutex> <numeric> <optional> <span>
    <sstream> <string> <string_view> <thread> <tuple> <unordered_map> <utility> <variant> <vector>)
add_library(bev_pch OBJECT ${CMAKE_BINARY_DIR}/generated/pch.cpp)
target_precompile_headers(bev_pch PRIVATE ${BEV_PCH_HEADERS})
target_compile_options(bev_pch PRIVATE ${BEV_WARNINGS})

# base, backend/cpu -> bev_base, bev_backend_cpu
function(bev_target_names out)
  list(TRANSFORM ARGN PREPEND bev_)
  string(REPLACE "/" "_" names "${ARGN}")
  set(${out} ${names} PARENT_SCOPE)
endfunction()

function(bev_warnings target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${BEV_WARNINGS}>")
endfunction()

function(bev_library folder)
  cmake_parse_arguments(arg "" "" "DEPENDS;LIBRARIES;DEFINITIONS;SOURCES" ${ARGN})
  bev_target_names(target ${folder})
  bev_target_names(depends ${arg_DEPENDS})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$|/backend/cpu/kernels/|/comm/mpi/")
  if(NOT BEV_SERVE)
    list(FILTER sources EXCLUDE REGEX "/app/commands/serve_command\\.cpp$")
  endif()
  list(APPEND sources ${arg_SOURCES})

  if(sources)
    set(scope PUBLIC)
    add_library(${target} STATIC ${sources})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
    target_precompile_headers(${target} REUSE_FROM bev_pch)
    target_compile_definitions(${target} PRIVATE ${arg_DEFINITIONS})
    bev_warnings(${target})
  else()
    set(scope INTERFACE)
    add_library(${target} INTERFACE)
  endif()
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>
                             $<INSTALL_INTERFACE:include/bevatron>)
  target_link_libraries(${target} ${scope} ${depends} ${arg_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY BEV_LIBRARIES ${target})
endfunction()

# Kernels (src/backend/cpu/kernels/*.cpp) are compiled once per instruction level, with BEV_CPU_LEVEL
# = v2 | v3 | v4 for their namespace; the sources beside them choose a level at run time and see
# BEV_CPU_HAS_V3 / BEV_CPU_HAS_V4. The levels are merged lowest first into one object, so that an
# inline function they share keeps the lowest level's code and never an instruction the CPU lacks.
function(bev_cpu_backend)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  bev_target_names(depends ${arg_DEPENDS})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(march_v2 -march=x86-64-v2)
    set(march_v3 -march=x86-64-v3)
    set(march_v4 -march=x86-64-v4 -mprefer-vector-width=512)
    set(levels ${BEV_CPU_LEVELS})
  else()
    set(levels v2)
  endif()

  # Sanitizers keep loops from becoming vectors: -O3 only makes them compile for three times as long.
  set(optimization -O3)
  if(BEV_SANITIZE)
    set(optimization -O1)
  endif()

  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cpu/kernels/*.cpp)
  set(objects)
  set(definitions)
  foreach(level IN LISTS levels)
    string(TOUPPER ${level} upper)
    list(APPEND definitions BEV_CPU_HAS_${upper})
    if(kernels)
      set(target bev_backend_cpu_${level})
      add_library(${target} OBJECT ${kernels})
      target_link_libraries(${target} PRIVATE ${depends})
      target_compile_definitions(${target} PRIVATE BEV_CPU_LEVEL=${level})
      bev_warnings(${target})
      target_compile_options(${target} PRIVATE ${optimization} -ffp-contract=fast -fno-math-errno
                             -fno-trapping-math ${march_${level}})
      list(APPEND objects $<TARGET_OBJECTS:${target}>)
    endif()
  endforeach()

  set(merged)
  if(kernels)
    set(merged ${CMAKE_BINARY_DIR}/generated/cpu_kernels.o)
    add_custom_command(OUTPUT ${merged} DEPENDS ${objects} VERBATIM COMMAND_EXPAND_LISTS
      COMMAND ${CMAKE_CXX_COMPILER} -r -nostdlib -fuse-ld=bfd -o ${merged} ${objects}
      COMMENT "Merging the CPU kernels' levels")
    set_source_files_properties(${merged} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endif()
  bev_library(backend/cpu DEPENDS ${arg_DEPENDS} LIBRARIES ${BEV_DNNL} gomp SOURCES ${merged}
              DEFINITIONS ${definitions})
  set(BEV_BACKENDS backend/cpu PARENT_SCOPE)
endfunction()

# Links the CUDA runtime statically and nothing else of CUDA: cuBLASLt, cuDNN and CUPTI are loaded when
# they are wanted, so the program starts and runs on the CPU where there is none of it.
function(bev_cuda_backend)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
  bev_library(backend/cuda DEPENDS ${arg_DEPENDS} SOURCES ${sources}
              LIBRARIES $<LINK_ONLY:CUDA::cudart_static> ${CMAKE_DL_LIBS})
  get_target_property(type bev_backend_cuda TYPE)
  if(type STREQUAL STATIC_LIBRARY)
    target_include_directories(bev_backend_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    # With it, traces have the kernels (src/backend/cuda/runtime/device_trace.cpp).
    if(BEV_CUPTI)
      target_include_directories(bev_backend_cuda SYSTEM PRIVATE ${BEV_CUPTI})
    endif()
    # With both, cuDNN serves attention where it can; it is loaded at run time, never linked.
    if(BEV_CUDNN_FRONTEND AND BEV_CUDNN)
      target_include_directories(bev_backend_cuda SYSTEM PRIVATE ${BEV_CUDNN_FRONTEND} ${BEV_CUDNN})
    endif()
    string(REPLACE ";" "," archs "${CMAKE_CUDA_ARCHITECTURES}")
    set_source_files_properties(src/backend/cuda/device.cpp PROPERTIES
                                COMPILE_DEFINITIONS BEV_CUDA_ARCHS="${archs}")
    target_compile_options(bev_backend_cuda PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror;-Werror=all-warnings>")
  endif()
  set(BEV_BACKENDS ${BEV_BACKENDS} backend/cuda PARENT_SCOPE)
  set(BEV_BACKEND_DEFINITIONS BEV_HAS_CUDA PARENT_SCOPE)
endfunction()

# Boost is headers only, whose warnings are not ours; OpenSSL is linked.
function(bev_server_library)
  bev_library(serve ${ARGN} LIBRARIES OpenSSL::SSL OpenSSL::Crypto)
  target_include_directories(bev_serve SYSTEM PRIVATE ${BEV_BOOST})
  if(BEV_SANITIZE MATCHES thread)
    # Boost's fences, which ThreadSanitizer does not see, come on top of locks.
    target_compile_options(bev_serve PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  endif()
  set(BEV_SERVERS serve PARENT_SCOPE)
  set(BEV_BACKEND_DEFINITIONS ${BEV_BACKEND_DEFINITIONS} BEV_HAS_SERVE PARENT_SCOPE)
endfunction()

function(bev_program name source)
  if(EXISTS ${CMAKE_SOURCE_DIR}/${source})
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
    target_precompile_headers(${name} REUSE_FROM bev_pch)
    target_link_libraries(${name} PRIVATE bev_app)
    # Of a bundle (tools/bundle.sh), for what these libraries need in turn too.
    set_target_properties(${name} PROPERTIES BUILD_RPATH "$ORIGIN/lib")
    target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
    target_compile_definitions(${name} PRIVATE BEV_VERSION="${PROJECT_VERSION}"
                               ${BEV_BACKEND_DEFINITIONS})
    bev_warnings(${name})
  endif()
endfunction()

# src/comm/mpi -> libbev_mpi.so beside the program, which loads it when it is started through MPI and
# runs where no MPI is installed. The module uses nothing of the program but headers.
function(bev_mpi_module program)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/comm/mpi/*.cpp)
  add_library(bev_mpi MODULE ${sources})
  set_target_properties(bev_mpi PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                        CXX_VISIBILITY_PRESET hidden)
  target_include_directories(bev_mpi PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(bev_mpi PRIVATE MPI::MPI_CXX Threads::Threads)
  bev_warnings(bev_mpi)
  add_dependencies(${program} bev_mpi)
endfunction()

# bench/<name>.cpp, and with CUDA bench/cuda/<name>.cpp -> build/bench/<name>, all built by the target
# `benchmarks`.
function(bev_benchmarks)
  add_custom_target(benchmarks)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/*.cpp)
  if(BEV_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/cuda/*.cpp)
    list(APPEND sources ${cuda_sources})
  endif()
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(bench_${name} ${source})
    set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name}
                          RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
    target_precompile_headers(bench_${name} REUSE_FROM bev_pch)
    target_link_libraries(bench_${name} PRIVATE bev_app)
    target_compile_definitions(bench_${name} PRIVATE ${BEV_BACKEND_DEFINITIONS})
    bev_warnings(bench_${name})
    add_dependencies(benchmarks bench_${name})
  endforeach()
endfunction()
