# Compiler settings shared by everything that is built here.
#
#   lacewing_options   interface target: warnings, sanitizers, repository include directories
#   lacewing_openmp    interface target: compile host code that uses at::parallel_for

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(LACEWING_CCACHE ccache)
mark_as_advanced(LACEWING_CCACHE)
if(LACEWING_CCACHE)
  # Hits from one build folder to another, precompiled headers included.
  set(ccache "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros "${LACEWING_CCACHE}")
  foreach(language IN ITEMS CXX CUDA)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${ccache}")
    endif()
  endforeach()
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

add_library(lacewing_options INTERFACE)
target_include_directories(lacewing_options INTERFACE
  "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
if(LACEWING_CHECK_INDICES)
  target_compile_definitions(lacewing_options INTERFACE LACEWING_CHECK_INDICES)
endif()
target_compile_options(lacewing_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic>
  # ccache looks into precompiled headers only with this.
  $<$<AND:$<BOOL:${LACEWING_PRECOMPILE}>,$<COMPILE_LANG_AND_ID:CXX,GNU>>:-fpch-preprocess>
  # nvcc's line markers are not pedantic C++.
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
  # for_each_nd hands a std::array to device code.
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)

# torch brings the shared C++ runtime. A compiler that only finds the static one would give this library a second one,
# and streams and exceptions that cross the border would crash: so the shared one is named.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES "-l:libstdc++.so.6")
check_cxx_source_compiles("#include <iostream>\nint main() { std::cout << 1; }" LACEWING_HAS_SHARED_LIBSTDCXX)
unset(CMAKE_REQUIRED_LIBRARIES)
if(LACEWING_HAS_SHARED_LIBSTDCXX)
  target_link_libraries(lacewing_options INTERFACE "-l:libstdc++.so.6")
endif()

if(LACEWING_SANITIZE)
  set(sanitize_flags -fsanitize=${LACEWING_SANITIZE} -fno-omit-frame-pointer)
  if(LACEWING_SANITIZE MATCHES "undefined")
    # vptr checks need the type information of torch's classes, which it hides.
    list(APPEND sanitize_flags -fno-sanitize-recover=all -fno-sanitize=vptr)
  endif()
  target_compile_options(lacewing_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${sanitize_flags}>)
  target_link_options(lacewing_options INTERFACE ${sanitize_flags})
endif()

# What the sanitized tests run under. Leaks can only be looked for where ptrace is allowed.
set(LACEWING_SANITIZE_ENVIRONMENT "")
if(LACEWING_SANITIZE MATCHES "address")
  if(NOT DEFINED LACEWING_DETECT_LEAKS)
    file(WRITE "${PROJECT_BINARY_DIR}/leak_probe.cpp" "int main() {}\n")
    set(ENV{ASAN_OPTIONS} detect_leaks=1)
    try_run(run_result compiled "${PROJECT_BINARY_DIR}/leak_probe" "${PROJECT_BINARY_DIR}/leak_probe.cpp"
      LINK_OPTIONS -fsanitize=address)
    unset(ENV{ASAN_OPTIONS})
    set(detect_leaks 0)
    if(compiled AND "${run_result}" STREQUAL "0")
      set(detect_leaks 1)
    endif()
    set(LACEWING_DETECT_LEAKS ${detect_leaks} CACHE STRING "Look for leaks in the address-sanitizer tests (0 or 1)")
  endif()
  list(APPEND LACEWING_SANITIZE_ENVIRONMENT
    # torch is not instrumented, so containers that it filled look overfull.
    "ASAN_OPTIONS=detect_leaks=${LACEWING_DETECT_LEAKS}:detect_container_overflow=0"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1")
elseif(LACEWING_SANITIZE MATCHES "thread")
  # A mutex that torch locks in its own code and unlocks in an inline function of ours is no bug.
  list(APPEND LACEWING_SANITIZE_ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/tsan.supp:history_size=4:report_mutex_bugs=0")
endif()

# at::parallel_for is an inline OpenMP header: without the flag it is silently serial. The runtime is not
# linked by name: libtorch_cpu.so brings its own, and taking the symbols from there makes a second one impossible.
add_library(lacewing_openmp INTERFACE)
target_compile_options(lacewing_openmp INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(WARNING "Lacewing: torch's wheels use GCC's OpenMP runtime, which code from "
    "${CMAKE_CXX_COMPILER_ID} does not share; build with g++ for parallel host code")
endif()
