# `cmake --install`: headers, library and package config. A wheel takes the component "python" alone.

if(SKBUILD)
  install(TARGETS lacewing LIBRARY DESTINATION lacewing/lib COMPONENT python)
  return()
endif()

include(CMakePackageConfigHelpers)
set(config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Lacewing")

install(TARGETS lacewing EXPORT LacewingTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/lacewing" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  COMPONENT cpp FILES_MATCHING PATTERN "*.h")
install(EXPORT LacewingTargets NAMESPACE lacewing:: DESTINATION "${config_dir}" COMPONENT cpp)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/LacewingConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/LacewingConfig.cmake" INSTALL_DESTINATION "${config_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/LacewingConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/LacewingConfig.cmake"
  "${PROJECT_BINARY_DIR}/LacewingConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/LacewingTorch.cmake"
  DESTINATION "${config_dir}" COMPONENT cpp)
