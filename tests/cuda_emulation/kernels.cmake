# cuda_emulation_kernels: CUDA kernels translated into C++ (translate.py) and compiled for the emulator, without CUDA.
# Those with TMA and wgmma are left out, as are libraries. Not on processors that fiber.cpp has no code for, and not
# under ThreadSanitizer, which does not know its fibers.

find_package(Python3 COMPONENTS Interpreter)
if(NOT Python3_FOUND OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" OR BEV_SANITIZE MATCHES "thread|fuzzer")
  return()
endif()

set(root ${CMAKE_SOURCE_DIR}/src)
set(translated_root ${CMAKE_BINARY_DIR}/generated/cuda_emulation)
file(GLOB units CONFIGURE_DEPENDS RELATIVE ${root} ${root}/backend/cuda/attention/*.cu ${root}/backend/cuda/loss/*.cu
     ${root}/backend/cuda/norm/*.cu ${root}/backend/cuda/sampling/*.cu)
foreach(unit elementwise/column_sums gemm/gemm_ring gemm/grouped_mma gemm/grouped_plain
        gemm/grouped_skinny gemm/linear_mma gemm/nf4_mma moe/sort_few optim/qk_clip quantize/nf4)
  list(APPEND units backend/cuda/${unit}.cu)
endforeach()
file(GLOB_RECURSE device_headers CONFIGURE_DEPENDS RELATIVE ${root} ${root}/backend/cuda/*.cuh)
list(FILTER device_headers EXCLUDE REGEX "hopper_ptx")

list(TRANSFORM units PREPEND ${translated_root}/ OUTPUT_VARIABLE translated)
list(TRANSFORM translated APPEND .cpp)
list(TRANSFORM device_headers PREPEND ${translated_root}/ OUTPUT_VARIABLE translated_headers)
list(TRANSFORM units PREPEND ${root}/ OUTPUT_VARIABLE sources)
list(TRANSFORM device_headers PREPEND ${root}/ OUTPUT_VARIABLE header_sources)
set(translator ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulation/translate.py)
add_custom_command(
  OUTPUT ${translated} BYPRODUCTS ${translated_headers}
  COMMAND Python3::Interpreter ${translator} ${root} ${translated_root} ${units} ${device_headers}
  DEPENDS ${translator} ${sources} ${header_sources}
  COMMENT "Translating CUDA kernels for the emulator" VERBATIM)

add_library(cuda_emulation_kernels OBJECT EXCLUDE_FROM_ALL ${translated})
target_include_directories(cuda_emulation_kernels PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/cuda_emulation/include
                           ${translated_root} ${root} ${CMAKE_SOURCE_DIR})
target_compile_definitions(cuda_emulation_kernels PRIVATE BEV_EMULATED_KERNELS)
# Misaligned vectors and indices outside of arrays end the test.
target_compile_options(cuda_emulation_kernels PRIVATE -w -include cuda_runtime.h -ffp-contract=off
                       -fsanitize=alignment,bounds -fno-sanitize-recover=all)
target_link_libraries(cuda_emulation_kernels PRIVATE bev_tensor)
