# SPDX-License-Identifier: Apache-2.0
# LORALEI_CUDA: auto (kernels for NVIDIA GPUs are compiled where nvcc is found), on (a missing nvcc is an error), off.
# Sets LORALEI_CUDA_FOUND and writes what was decided to <build>/cuda_compiled.txt (one line; .ci/run prints it).
#
# The runtime is linked statically and cuBLASLt is opened when it is first used, so that the one binary starts on machines
# without CUDA. LORALEI_CUDA_EMULATED tells whether the kernels' tests run on the CPU (x86-64, without sanitizers, whose
# runtimes do not know our fibers); that library is for tests alone and never linked by a program.
set(LORALEI_CUDA auto CACHE STRING "Kernels for NVIDIA GPUs: auto, on or off")
set_property(CACHE LORALEI_CUDA PROPERTY STRINGS auto on off)
if(NOT LORALEI_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "LORALEI_CUDA=${LORALEI_CUDA} is none of auto, on, off; choose one of them.")
endif()

set(LORALEI_CUDA_FOUND OFF)
set(cuda_line "cuda: NOT compiled (LORALEI_CUDA=off)")
if(NOT LORALEI_CUDA STREQUAL "off")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(LORALEI_NVCC nvcc HINTS /usr/local/cuda/bin /opt/cuda/bin)
    if(LORALEI_NVCC)
      set(CMAKE_CUDA_COMPILER ${LORALEI_NVCC})
    endif()
  endif()
  # Kernels for the GPUs of this machine; where there is none, for one architecture, to see that they compile.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      RESULT_VARIABLE asked OUTPUT_VARIABLE capabilities ERROR_QUIET)
    set(architectures 90-real)
    if(asked EQUAL 0 AND capabilities MATCHES "^[0-9]+\\.[0-9]")
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" architectures "${capabilities}")
      list(TRANSFORM architectures REPLACE "\\." "")
      list(TRANSFORM architectures APPEND "-real")
      list(REMOVE_DUPLICATES architectures)
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPU architectures to compile for")
  endif()
  include(${CMAKE_CURRENT_LIST_DIR}/CudaArchitectures.cmake)
  loralei_check_cuda_architectures("${CMAKE_CUDA_ARCHITECTURES}" wrong)
  if(wrong)
    message(FATAL_ERROR "${wrong}")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND AND TARGET CUDA::cudart_static AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.0)
      set(LORALEI_CUDA_FOUND ON)
      set(cuda_line "cuda: compiled with nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
    elseif(LORALEI_CUDA STREQUAL "on")
      message(FATAL_ERROR "LORALEI_CUDA=on needs the CUDA toolkit 12.0 or later with its static runtime; found nvcc "
        "${CMAKE_CUDA_COMPILER_VERSION}: install a whole toolkit, or build with -DLORALEI_CUDA=off.")
    else()
      set(cuda_line "cuda: NOT compiled (nvcc ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.0 or its toolkit is not whole)")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # older CMakes do not know that newer nvccs have it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
    set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
    if(LORALEI_CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${LORALEI_CCACHE})
    endif()
  elseif(LORALEI_CUDA STREQUAL "on")
    message(FATAL_ERROR "LORALEI_CUDA=on but no nvcc was found: install the CUDA toolkit, name it with "
      "-DCMAKE_CUDA_COMPILER=/path/to/nvcc, or build with -DLORALEI_CUDA=off.")
  else()
    set(cuda_line "cuda: NOT compiled (no nvcc found)")
  endif()
endif()
file(WRITE ${PROJECT_BINARY_DIR}/cuda_compiled.txt "${cuda_line}\n")
message(STATUS "${cuda_line}")

set(LORALEI_CUDA_EMULATED OFF)
if(LORALEI_TESTS AND NOT LORALEI_SANITIZE AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64" AND NOT CMAKE_CROSSCOMPILING)
  set(LORALEI_CUDA_EMULATED ON)
endif()

# Flags of every target with CUDA sources; the host compiler's warnings go through nvcc. The project's options (-Wall ...)
# are set for C++ alone in the top-level list file.
function(loralei_cuda_flags target)
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-Wno-missing-field-initializers -Wno-deprecated-gpu-targets>)
  target_include_directories(${target} PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endfunction()
