# Run by cpack between installing into its folder and packing: what Debian wants beside every package.
file(GLOB components ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component IN LISTS components)
    cmake_path(GET component FILENAME name)
    string(TOUPPER ${name} name)
    set(package ${CPACK_DEBIAN_${name}_PACKAGE_NAME})
    set(doc ${component}/usr/share/doc/${package})
    set(version ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
    file(WRITE ${doc}/copyright
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: headway

Files: *
Copyright: 2026 The Headway developers
License: Apache-2.0
 On Debian systems the full text of the license is in
 /usr/share/common-licenses/Apache-2.0.
")
    file(WRITE ${doc}/changelog.Debian
"headway (${version}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}, packed by its own build.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
    execute_process(COMMAND gzip -9n ${doc}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
endforeach()
