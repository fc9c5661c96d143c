# SPDX-License-Identifier: Apache-2.0
# LORALEI_PORTABLE: one program for every Linux with glibc 2.28 or newer. Libraries are linked statically, glibc alone is not, and is
# asked for nothing newer than that (packaging/portable). No GPU, no MPI: what they need is not small.
set(LORALEI_OLDEST_GLIBC 2.28)
enable_language(C)
set(portable_dir ${CMAKE_BINARY_DIR}/portable)
if(LORALEI_SANITIZE OR LORALEI_TESTS)
  message(FATAL_ERROR "LORALEI_PORTABLE is for the program alone: build it with -DLORALEI_TESTS=OFF and without sanitizers (cmake --preset portable).")
endif()
set(LORALEI_CUDA off CACHE STRING "" FORCE)
set(LORALEI_MPI off CACHE STRING "" FORCE)
set(LORALEI_EPP off CACHE STRING "" FORCE)

set(portable_triple)
if(CMAKE_CROSSCOMPILING)
  set(portable_triple ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
endif()
function(run_portable)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(failed)
    message(FATAL_ERROR "${ARGN} failed; what it says stands above.")
  endif()
endfunction()
run_portable(packaging/portable/dependencies.sh ${portable_dir}/libraries ${portable_triple})
run_portable(packaging/portable/glibc_stubs.py --compiler ${CMAKE_CXX_COMPILER} --newest ${LORALEI_OLDEST_GLIBC} ${portable_dir}/glibc)

set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
find_library(LORALEI_WHOLE_ICU_DATA icudata REQUIRED)
run_portable(packaging/portable/icu_data.sh ${portable_dir}/libraries ${LORALEI_WHOLE_ICU_DATA} ${CMAKE_CXX_COMPILER})
set(OPENSSL_USE_STATIC_LIBS ON)
list(PREPEND CMAKE_PREFIX_PATH ${portable_dir}/libraries)
list(APPEND CMAKE_FIND_ROOT_PATH ${portable_dir}/libraries)
set(ENV{PKG_CONFIG_PATH} ${portable_dir}/libraries/lib/pkgconfig)

# Links a program so; fails where it would need more of a machine than it may.
function(loralei_portable target)
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/packaging/portable/glibc_compat.c)
  set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
  target_link_directories(${target} BEFORE PRIVATE ${portable_dir}/glibc)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--wrap=__libc_start_main -Wl,--gc-sections -s
    -Wl,--push-state,--no-as-needed -lpthread -ldl -lrt -Wl,--pop-state)
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND ${PROJECT_SOURCE_DIR}/packaging/portable/check_needs.py --newest ${LORALEI_OLDEST_GLIBC} $<TARGET_FILE:${target}>)
endfunction()
