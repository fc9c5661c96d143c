#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes libraries to link against in place of this machine's glibc: they define what it does, each name with the newest version
that an older glibc has too. A program linked against them asks for nothing newer. They hold no code and are never run.

glibc_stubs.py --compiler CC --newest 2.28 DIRECTORY

A name that only came later is left out, so that the link fails and says its name; glibc_compat.c has those that are needed."""
import argparse
import pathlib
import re
import subprocess
import sys

LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2")
# Since 2.34 the others are empty and libc has what they had; before, they have it.
SYMBOL = re.compile(r"^\s*\d+: [0-9a-f]+\s+(\w+) (FUNC|IFUNC|OBJECT|TLS)\s+(GLOBAL|WEAK)\s+DEFAULT\s+\w+ (\w+)@{1,2}(GLIBC_[\d.]+)", re.M)


def version(text):
    return tuple(int(part) for part in text.removeprefix("GLIBC_").split("."))


def definitions(library, newest):
    """{name: (version, kind, bytes)}, the newest version of each that is old enough."""
    listed = subprocess.run(["readelf", "--dyn-syms", "-W", library], check=True, capture_output=True, text=True).stdout
    found = {}
    for size, kind, _, name, of in SYMBOL.findall(listed):
        if version(of) <= newest and (name not in found or version(of) > version(found[name][0])):
            found[name] = (of, kind, int(size, 0))
    return found


def write_stub(compiler, library, found, directory):
    source, script, target = (directory / (library + end) for end in (".S", ".map", ""))
    lines = []
    for name, (_, kind, size) in sorted(found.items()):
        section = {"OBJECT": ".bss", "TLS": '.tbss,"awT",%nobits'}.get(kind, ".text")
        held = max(size, 8)
        lines += [f".section {section}" if kind == "TLS" else section, f".globl {name}", f".type {name}, %{'function' if 'FUNC' in kind else 'object'}",
                  f".size {name}, {held}", f"{name}: .zero {held}"]
    source.write_text("\n".join(lines) + "\n.section .note.GNU-stack,\"\",%progbits\n")
    nodes = {}
    for name, (of, _, _) in found.items():
        nodes.setdefault(of, []).append(name)
    before = ""
    text = ""
    for of in sorted(nodes, key=version):
        rest = " local: *;" if not before else ""
        text += f"{of} {{ global: {'; '.join(sorted(nodes[of]))};{rest} }} {before};\n"
        before = of
    script.write_text(text)
    mapped = [f"-Wl,--version-script={script}"] if text else []
    subprocess.run([*compiler, "-shared", "-nostdlib", f"-Wl,-soname,{library}", "-Wl,--build-id=none", *mapped, "-o", str(target), str(source)], check=True)
    plain = directory / (library.split(".so")[0] + ".so")
    plain.unlink(missing_ok=True)
    plain.symlink_to(library)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default="cc", help="of the machine that the program is for")
    parser.add_argument("--newest", default="2.28")
    parser.add_argument("directory", type=pathlib.Path)
    options = parser.parse_args()
    compiler = options.compiler.split()
    options.directory.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        path = subprocess.run([*compiler, f"-print-file-name={library}"], check=True, capture_output=True, text=True).stdout.strip()
        if path == library:
            sys.exit(f"glibc_stubs: {options.compiler} has no {library}; install the C library that it links against (libc6-dev).")
        write_stub(compiler, library, definitions(path, version(options.newest)), options.directory)


if __name__ == "__main__":
    main()
