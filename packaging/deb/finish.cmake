# SPDX-License-Identifier: Apache-2.0
# Run by cpack when all is in place and nothing is packed: what packages of Debian have beside what is installed.
get_filename_component(deb ${CMAKE_CURRENT_LIST_DIR} ABSOLUTE)
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/share)
file(COPY ${deb}/copyright DESTINATION ${root}/doc/loralei FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
file(MAKE_DIRECTORY ${root}/lintian/overrides)
configure_file(${deb}/lintian-overrides ${root}/lintian/overrides/loralei COPYONLY)
# The settings are the administrator's (conffiles).
file(MAKE_DIRECTORY ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/etc/default)
configure_file(${deb}/../systemd/default ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/etc/default/loralei COPYONLY)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # SOURCE_DATE_EPOCH where it is set
file(WRITE ${root}/doc/loralei/changelog.Debian
  "loralei (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n  * What changed stands in CHANGELOG.md.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
file(RENAME ${root}/doc/loralei/CHANGELOG.md ${root}/doc/loralei/changelog)
file(GLOB pages ${root}/man/man1/*.1)
execute_process(COMMAND gzip -9nf ${root}/doc/loralei/changelog.Debian ${root}/doc/loralei/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
