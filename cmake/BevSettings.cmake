# Compiler, linker, third-party packages and the CUDA switch, for the whole tree.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g")

# -fpch-preprocess lets ccache work with the precompiled headers; with CCACHE_DEPEND it takes the included files from the
# compiler and preprocesses nothing itself.
find_program(BEV_CCACHE ccache)
if(BEV_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${BEV_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER env CCACHE_DEPEND=1 ${BEV_CCACHE})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()
find_program(BEV_LLD ld.lld)
if(BEV_LLD)
  add_link_options(-fuse-ld=lld)
  # g++ 12 may split a function off that is empty; lld then loses its neighbour's unwind table, and an
  # exception that passes there ends the program.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-reorder-blocks-and-partition>)
endif()
add_link_options(-Wl,--as-needed)

set(BEV_WARNINGS -Wall -Wextra -Wshadow -Werror)
if(BEV_SANITIZE)
  # The sanitizers' own code trips g++'s flow warnings, which the plain builds already check.
  list(REMOVE_ITEM BEV_WARNINGS -Werror)
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1")
  set(flags -fsanitize=${BEV_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
  add_link_options(-fsanitize=${BEV_SANITIZE})
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
# Debian's dnnl package file asks for OpenCL headers, which the CPU does not need.
find_library(BEV_DNNL dnnl REQUIRED)
find_package(ZLIB REQUIRED)
find_library(BEV_ZSTD zstd REQUIRED)
find_library(BEV_PCRE2 pcre2-8 REQUIRED)
find_path(BEV_XXHASH xxhash.h REQUIRED)
find_library(BEV_UTF8PROC utf8proc REQUIRED)

# BEV_MPI is a plain yes or no from here on.
if(BEV_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND AND NOT BEV_MPI STREQUAL AUTO)
    message(FATAL_ERROR "BEV_MPI is ON, but there is no MPI (libopenmpi-dev)")
  endif()
  set(BEV_MPI ${MPI_CXX_FOUND})
endif()

# BEV_SERVE is a plain yes or no from here on. Headers of Boost are enough.
if(BEV_SERVE)
  find_package(OpenSSL QUIET)
  find_path(BEV_BOOST boost/beast/http/basic_parser.hpp HINTS ${BOOST_ROOT} ENV BOOST_ROOT PATH_SUFFIXES include)
  set(version 0)
  if(EXISTS ${BEV_BOOST}/boost/version.hpp)
    file(STRINGS ${BEV_BOOST}/boost/version.hpp version REGEX "^#define BOOST_VERSION ")
    string(REGEX MATCH "[0-9]+" version "${version}")
  endif()
  set(found ON)
  if(NOT OPENSSL_FOUND OR version LESS 107400)
    if(NOT BEV_SERVE STREQUAL AUTO)
      message(FATAL_ERROR "BEV_SERVE is ON, but there is no Boost 1.74 or newer (libboost-dev), or no OpenSSL (libssl-dev)")
    endif()
    set(found OFF)
  endif()
  set(BEV_SERVE ${found})
endif()

# BEV_CUDA is a plain yes or no from here on; without it the CUDA language stays off.
if(BEV_CUDA STREQUAL AUTO)
  find_program(BEV_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(BEV_NVCC)
    set(BEV_CUDA ON)
  else()
    set(BEV_CUDA OFF)
  endif()
endif()
if(BEV_CUDA)
  find_program(BEV_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin REQUIRED)
  set(CMAKE_CUDA_COMPILER ${BEV_NVCC} CACHE FILEPATH "nvcc")
  include(BevCudaArchs)
  bev_cuda_archs(CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
  # Device code calls constexpr functions of the host (base/divide.h).
  string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr")
  # CMake 3.25 does not know that nvcc speaks C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  find_package(CUDAToolkit REQUIRED)
  # tools/setup.sh puts the frontend there. Without it our kernels serve all of attention.
  find_path(BEV_CUDNN_FRONTEND cudnn_frontend.h
            HINTS ${CMAKE_SOURCE_DIR}/third_party/cudnn_frontend/include)
  find_path(BEV_CUDNN cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_path(BEV_CUPTI cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
            ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include)
endif()
message(STATUS "Bevatron: ${CMAKE_BUILD_TYPE}, CUDA ${BEV_CUDA} ${CMAKE_CUDA_ARCHITECTURES}, MPI ${BEV_MPI}, server ${BEV_SERVE}, sanitizers '${BEV_SANITIZE}'")
