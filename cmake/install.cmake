# What `cmake --install` puts where, and the Debian packages that cpack makes of it: runtime (the shared
# library), development (header, archive, CMake package, pkg-config file) and tool (the command).

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/headway)
install(FILES include/headway/headway.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/headway
    COMPONENT development)
install(TARGETS headway_shared EXPORT headwayTargets
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT development)
install(TARGETS headway_static EXPORT headwayTargets ARCHIVE COMPONENT development)
install(EXPORT headwayTargets NAMESPACE headway:: DESTINATION ${package_dir} COMPONENT development)
configure_file(cmake/headwayConfig.cmake.in headwayConfig.cmake @ONLY)
write_basic_package_version_file(headwayConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headwayConfig.cmake ${PROJECT_BINARY_DIR}/headwayConfigVersion.cmake
    DESTINATION ${package_dir} COMPONENT development)
if(TARGET headway_command)
    install(TARGETS headway_command RUNTIME COMPONENT tool)
endif()

# Folders of headway.pc count from where the file lies, so that the prefix can be moved.
foreach(what LIBDIR INCLUDEDIR)
    set(pc_${what} ${CMAKE_INSTALL_FULL_${what}})
    if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_${what}})
        file(RELATIVE_PATH pc_${what} /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig
            /prefix/${CMAKE_INSTALL_${what}})
        string(REGEX REPLACE "/$" "" pc_${what} ${pc_${what}})
        set(pc_${what} "\${pcfiledir}/${pc_${what}}")
    endif()
endforeach()
set(pc_private ${openmp_libraries} m)
list(TRANSFORM pc_private PREPEND -l REGEX "^[^/]")
list(JOIN pc_private " " pc_private)
configure_file(cmake/headway.pc.in headway.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/headway.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT development)

# ---- Debian packages: cpack -G DEB ---------------------------------------------------------------

# dpkg-shlibdeps knows the machine's own packages alone.
if(CMAKE_CROSSCOMPILING)
    return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The Headway developers <headway@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/deb.cmake)
set(CPACK_COMPONENTS_ALL runtime development)
if(TARGET headway_command)
    list(APPEND CPACK_COMPONENTS_ALL tool)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(about "multi-head attention for CPUs")
set(more "Scaled dot-product attention and whole attention layers, with caches of
keys and values, on AVX-512, AVX2, NEON and plain C, chosen at run time,
with the same bits on each.")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libheadway${soversion})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_DESCRIPTION "${about}\n${more}")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
file(WRITE ${PROJECT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/triggers)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY >=)

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libheadway-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION
    "${about}: development\n${more}\n.\nThe header, the archive, and files for CMake and pkg-config.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libheadway${soversion} (= ${version}-${CPACK_DEBIAN_PACKAGE_RELEASE}), libc6-dev")

set(CPACK_DEBIAN_TOOL_PACKAGE_NAME headway)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOL_DESCRIPTION
    "${about}: command\n${more}\n.\nThe command runs layers from .safetensors and .npy files and checks them.")
set(CPACK_DEBIAN_TOOL_PACKAGE_SHLIBDEPS ON)
include(CPack)
