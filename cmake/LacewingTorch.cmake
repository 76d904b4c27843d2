# Finds libtorch and makes targets for it, without torch's own package config: that one asks for the whole CUDA
# toolkit (cuDNN, NVTX, cuBLAS, ...) whenever torch was built with CUDA. Used by the build and by the installed package.
#
#   lacewing_find_torch([REQUIRED])
#
# Looks, in this order, at LACEWING_TORCH_ROOT (the folder with torch's include/ and lib/), Torch_DIR,
# CMAKE_PREFIX_PATH, and the torch package of the Python interpreter (Python_EXECUTABLE, else the first one found).
# Sets LACEWING_TORCH_FOUND, LACEWING_TORCH_ROOT, LACEWING_TORCH_VERSION, LACEWING_TORCH_LIBRARY_DIR, and defines
#
#   lacewing::torch    include directories (as system headers), ABI flag, libtorch, libtorch_cpu, libc10

include_guard(GLOBAL)

set(LACEWING_TORCH_MINIMUM 2.11)

function(_lacewing_is_torch_root folder result)
  if(EXISTS "${folder}/include/ATen/ATen.h" AND EXISTS "${folder}/lib/libtorch_cpu.so")
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

function(_lacewing_torch_from_python result)
  set(${result} "" PARENT_SCOPE)
  if(NOT Python_EXECUTABLE)
    set(Python_FIND_VIRTUALENV FIRST)
    find_package(Python 3 QUIET COMPONENTS Interpreter)
  endif()
  if(NOT Python_EXECUTABLE)
    return()
  endif()
  # The package's place is enough; importing torch would take seconds.
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(root)
    set(${result} "${root}" PARENT_SCOPE)
  endif()
endfunction()

function(_lacewing_torch_version root result)
  set(version "")
  foreach(header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT version AND EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
      string(REPLACE ";" "." version "${numbers}")
    endif()
  endforeach()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

macro(_lacewing_torch_missing)
  set(LACEWING_TORCH_FOUND FALSE PARENT_SCOPE)
  string(CONCAT LACEWING_TORCH_MESSAGE ${ARGN})
  set(LACEWING_TORCH_MESSAGE "${LACEWING_TORCH_MESSAGE}" PARENT_SCOPE)
  if(arg_REQUIRED)
    message(FATAL_ERROR "${LACEWING_TORCH_MESSAGE}")
  endif()
  return()
endmacro()

function(lacewing_find_torch)
  cmake_parse_arguments(PARSE_ARGV 0 arg "REQUIRED" "" "")

  set(candidates "")
  if(LACEWING_TORCH_ROOT)
    list(APPEND candidates "${LACEWING_TORCH_ROOT}")
  endif()
  if(Torch_DIR)
    list(APPEND candidates "${Torch_DIR}/../../..")
  endif()
  set(prefixes ${CMAKE_PREFIX_PATH})
  if(DEFINED ENV{CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND prefixes ${from_environment})
  endif()
  foreach(prefix IN LISTS prefixes)
    # A wheel's torch.utils.cmake_prefix_path is torch/share/cmake; libtorch archives give the root itself.
    list(APPEND candidates "${prefix}" "${prefix}/../..")
  endforeach()

  set(root "")
  foreach(candidate IN LISTS candidates)
    _lacewing_is_torch_root("${candidate}" found)
    if(found AND NOT root)
      set(root "${candidate}")
    endif()
  endforeach()
  if(NOT root)
    _lacewing_torch_from_python(root)
  endif()
  if(NOT root)
    _lacewing_torch_missing("torch was not found: give Python_EXECUTABLE (an interpreter with torch), Torch_DIR, "
      "CMAKE_PREFIX_PATH or LACEWING_TORCH_ROOT")
  endif()
  _lacewing_is_torch_root("${root}" found)
  if(NOT found)
    _lacewing_torch_missing("torch in ${root} has no include/ATen/ATen.h or no lib/libtorch_cpu.so")
  endif()
  get_filename_component(root "${root}" REALPATH)

  _lacewing_torch_version("${root}" version)
  if(version VERSION_LESS LACEWING_TORCH_MINIMUM)
    _lacewing_torch_missing("torch in ${root} is version '${version}'; ${LACEWING_TORCH_MINIMUM} or newer is needed")
  endif()

  if(NOT TARGET lacewing::torch)
    # Wheels since 2.7 use the C++11 ABI; an archive's config says so when it does not.
    set(abi 1)
    set(config "${root}/share/cmake/Torch/TorchConfig.cmake")
    if(EXISTS "${config}")
      file(STRINGS "${config}" abi_line REGEX "_GLIBCXX_USE_CXX11_ABI=0" LIMIT_COUNT 1)
      if(abi_line)
        set(abi 0)
      endif()
    endif()

    add_library(lacewing::torch INTERFACE IMPORTED GLOBAL)
    set_target_properties(lacewing::torch PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
      INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=${abi}"
      INTERFACE_COMPILE_FEATURES cxx_std_20
      # A program must name all three itself: its run path finds them, and libtorch.so, which has no symbols,
      # is what loads the CUDA half.
      INTERFACE_LINK_LIBRARIES
        "-Wl,--push-state,--no-as-needed;${root}/lib/libtorch.so;${root}/lib/libtorch_cpu.so;${root}/lib/libc10.so;-Wl,--pop-state")
    if(EXISTS "${root}/lib/libtorch_cuda.so")
      # Its own dependencies (driver, cuBLAS, ...) need not be on the machine that builds.
      set_target_properties(lacewing::torch PROPERTIES INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined")
    endif()
  endif()

  set(LACEWING_TORCH_FOUND TRUE PARENT_SCOPE)
  set(LACEWING_TORCH_ROOT "${root}" PARENT_SCOPE)
  set(LACEWING_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(LACEWING_TORCH_LIBRARY_DIR "${root}/lib" PARENT_SCOPE)
endfunction()
