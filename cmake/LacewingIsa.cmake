# Compiles kernels once per CPU instruction set; the library picks one at run time.
#
#   lacewing_add_isa_sources(<target> <file.cpp>...)     once for a target
#
# Each file is compiled with LACEWING_ISA=baseline, avx2 and avx512 (a bare word: use it as the name of a namespace)
# and LACEWING_ISA_LEVEL=0, 1 and 2. On other processors than x86-64 and with sanitizers only the baseline is compiled:
# what they can see is the same in every level, and a level takes minutes. Beyond the ends of operands no level goes in
# the tests of any build (tests/cpp/kernels/fenced.h).
# <target> gets LACEWING_HAVE_X86_ISA=0/1, and so do the files.
#
# Objects are linked in the order: the target's own, baseline, avx2, avx512. A file that uses an inline function outside its namespace
# (a std:: template, say) also holds a definition of it, and the linker keeps the first one: so code of one level
# never ends up calling code of a higher one.

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT LACEWING_SANITIZE)
  set(LACEWING_HAVE_X86_ISA 1)
  set(LACEWING_ISA_LEVELS baseline avx2 avx512)
else()
  set(LACEWING_HAVE_X86_ISA 0)
  set(LACEWING_ISA_LEVELS baseline)
endif()
set(LACEWING_ISA_LEVEL_baseline 0)
set(LACEWING_ISA_LEVEL_avx2 1)
set(LACEWING_ISA_LEVEL_avx512 2)
set(LACEWING_ISA_FLAGS_baseline "")
set(LACEWING_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(LACEWING_ISA_FLAGS_avx512
  -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512)

function(lacewing_add_isa_sources target)
  foreach(isa IN LISTS LACEWING_ISA_LEVELS)
    set(objects ${target}_${isa})
    if(NOT TARGET ${objects})
      add_library(${objects} OBJECT)
      target_link_libraries(${objects} PRIVATE lacewing_options)
      target_compile_definitions(${objects} PRIVATE
        LACEWING_HAVE_X86_ISA=${LACEWING_HAVE_X86_ISA}
        LACEWING_ISA=${isa} LACEWING_ISA_LEVEL=${LACEWING_ISA_LEVEL_${isa}})
      if(NOT LACEWING_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
        target_compile_options(${objects} PRIVATE -O3)
      endif()
      target_compile_options(${objects} PRIVATE
        -fno-math-errno -ffp-contract=fast ${LACEWING_ISA_FLAGS_${isa}})
    endif()
    target_sources(${objects} PRIVATE ${ARGN})
  endforeach()
  lacewing_link_isa_objects(${target} ${target})
endfunction()

# Links the objects that lacewing_add_isa_sources(<owner> ...) has made into another target too.
function(lacewing_link_isa_objects target owner)
  foreach(isa IN LISTS LACEWING_ISA_LEVELS)
    # Linked, not added as sources: these come behind the target's own objects.
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:$<TARGET_OBJECTS:${owner}_${isa}>>)
  endforeach()
  target_compile_definitions(${target} PRIVATE LACEWING_HAVE_X86_ISA=${LACEWING_HAVE_X86_ISA})
endfunction()
