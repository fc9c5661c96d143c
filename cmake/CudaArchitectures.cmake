# SPDX-License-Identifier: Apache-2.0
# The kernels need compute capability 8.0 (products of bf16, cp.async). loralei_check_cuda_architectures(ARCHITECTURES
# OUT): what is wrong with a list as CMAKE_CUDA_ARCHITECTURES has it, as a sentence; empty where nothing is.
function(loralei_check_cuda_architectures architectures out)
  set(sentence "")
  foreach(architecture ${architectures})
    if(architecture MATCHES "^all" OR (architecture MATCHES "^([0-9]+)" AND CMAKE_MATCH_1 LESS 80))
      set(sentence "CMAKE_CUDA_ARCHITECTURES has '${architecture}', but the kernels need compute capability 8.0 or later \
(bf16 products, cp.async): name the GPUs, such as -DCMAKE_CUDA_ARCHITECTURES=\"80-real;86-real;89-real;90\", or build with \
-DLORALEI_CUDA=off.")
      break()
    endif()
  endforeach()
  set(${out} "${sentence}" PARENT_SCOPE)
endfunction()
