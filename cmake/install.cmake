# cmake --install: program, library, headers, CMake package, pkg-config file.
include(CMakePackageConfigHelpers)
set(LG_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/leapgrad)

install(TARGETS leapgrad EXPORT leapgradTargets)
if(TARGET leapgrad-cli)
  install(TARGETS leapgrad-cli)
endif()
foreach(flavor IN LISTS LG_MPI_FLAVORS)
  install(TARGETS leapgrad-${flavor} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/leapgrad)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/leapgrad DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(EXPORT leapgradTargets NAMESPACE leapgrad:: DESTINATION ${LG_CMAKE_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/leapgradConfig.cmake.in
  ${PROJECT_BINARY_DIR}/leapgradConfig.cmake INSTALL_DESTINATION ${LG_CMAKE_DIR}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/leapgradConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/leapgradConfig.cmake ${PROJECT_BINARY_DIR}/leapgradConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/dependencies.cmake DESTINATION ${LG_CMAKE_DIR})

# What a program links besides a static libleapgrad stands in the public fields: --static would ask for static
# libraries of the dependencies too, which few systems have. A shared one brings its own.
if(BUILD_SHARED_LIBS)
  set(kind SHARED)
else()
  set(kind STATIC)
endif()
set(LG_PC_${kind}_REQUIRES "hwloc jansson libcyaml libxxhash zlib")
set(LG_PC_${kind}_LIBS "-lm")
if(CMAKE_THREAD_LIBS_INIT)
  string(APPEND LG_PC_${kind}_LIBS " ${CMAKE_THREAD_LIBS_INIT}")
endif()
if("cpu" IN_LIST LG_DEVICES)
  string(APPEND LG_PC_${kind}_LIBS " -ldnnl ${OpenMP_C_FLAGS}")
endif()
foreach(dir LIBDIR INCLUDEDIR)
  set(LG_PC_${dir} "\${prefix}")
  cmake_path(APPEND LG_PC_${dir} ${CMAKE_INSTALL_${dir}}) # an absolute one replaces the prefix
endforeach()
# The prefix is found from where the file lies, so that `cmake --install build --prefix DIR` may name any.
set(LG_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH up "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(LG_PC_PREFIX "\${pcfiledir}/${up}")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/leapgrad.pc.in ${PROJECT_BINARY_DIR}/leapgrad.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/leapgrad.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
