# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` and `cpack` take: the program, its pages, the demo, what services and shells need. docs/install.md.
include(GNUInstallDirs)
install(TARGETS loralei RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET loralei-epp)
  install(TARGETS loralei-epp RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES README.md CHANGELOG.md LICENSE THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(DIRECTORY demo/model demo/adapters DESTINATION ${CMAKE_INSTALL_DATADIR}/loralei/demo)
# Written by the program itself, from its table of options.
if(NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR)
  install(CODE "
    set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}\")
    set(program ${CMAKE_CROSSCOMPILING_EMULATOR} \"$<TARGET_FILE:loralei>\")
    file(MAKE_DIRECTORY \"\${share}/man/man1\" \"\${share}/bash-completion/completions\" \"\${share}/zsh/vendor-completions\" \"\${share}/fish/vendor_completions.d\")
    execute_process(COMMAND \${program} man \"\${share}/man/man1\" COMMAND_ERROR_IS_FATAL ANY)
    foreach(one \"bash:bash-completion/completions/loralei\" \"zsh:zsh/vendor-completions/_loralei\" \"fish:fish/vendor_completions.d/loralei.fish\")
      string(REPLACE \":\" \";\" one \"\${one}\")
      list(GET one 0 shell)
      list(GET one 1 file)
      execute_process(COMMAND \${program} completion \${shell} OUTPUT_FILE \"\${share}/\${file}\" COMMAND_ERROR_IS_FATAL ANY)
    endforeach()")
endif()
install(FILES packaging/systemd/loralei.service DESTINATION lib/systemd/system)
install(FILES packaging/systemd/default DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples RENAME loralei.default)
install(DIRECTORY packaging/kubernetes packaging/container packaging/nginx DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
if(LORALEI_PORTABLE)
  # What is linked into the program, and under which licences.
  install(CODE "
    set(doc \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/loralei\")
    file(MAKE_DIRECTORY \"\${doc}/licences\")
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/packaging/sbom.py ${CMAKE_BINARY_DIR} $<TARGET_FILE:loralei> -o \"\${doc}/sbom.cdx.json\"
      COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/packaging/licences.py \"\${doc}/sbom.cdx.json\" \"\${doc}/licences\" ${CMAKE_BINARY_DIR}/portable/libraries
      COMMAND_ERROR_IS_FATAL ANY)")
endif()

# --- a package of Debian
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME loralei)
set(CPACK_PACKAGE_VENDOR "The Loralei authors")
set(CPACK_PACKAGE_CONTACT "The Loralei authors <loralei@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serves one language model with many LoRA adapters")
set(CPACK_PACKAGE_DESCRIPTION "One base model, many LoRA adapters, each of them a model of an
OpenAI-compatible API; requests for different adapters are computed
together in one batch. Models larger than memory are streamed under
a budget.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
if(LORALEI_PORTABLE)
  set(CPACK_STRIP_FILES OFF)  # it is, and its bill of materials has its sum
endif()
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/deb/finish.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(script postinst prerm postrm conffiles)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/deb/${script})
endforeach()
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
include(CPack)
