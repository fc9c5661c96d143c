#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""build_wheel.py [--binary build-portable/loralei] [-o DIRECTORY]: a wheel of the program and of the package `loralei`, with nothing but
Python's own library. The same binary gives the same bytes.

Its tag is what the binary needs of a machine: manylinux_2_28 where glibc 2.28 alone is enough, else linux, for this machine and its like."""
import argparse
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MACHINES = {62: "x86_64", 183: "aarch64"}
GLIBC = (2, 28)


def machine_of(binary):
    head = binary.read_bytes()[:20]
    if head[:4] != b"\x7fELF":
        sys.exit(f"build_wheel: {binary} is no program of Linux; name one with --binary (cmake --preset portable builds it).")
    number = int.from_bytes(head[18:20], "little")
    if number not in MACHINES:
        sys.exit(f"build_wheel: {binary} is for a machine (ELF number {number}) that wheels have no name for here.")
    return MACHINES[number]


def platform_of(binary):
    check = subprocess.run([sys.executable, str(ROOT / "packaging/portable/check_needs.py"), "--newest", ".".join(map(str, GLIBC)), str(binary)],
                           stdout=subprocess.PIPE, text=True)
    return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine_of(binary)}" if check.returncode == 0 else f"linux_{machine_of(binary)}"


def version():
    return re.search(r"project\(loralei VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def metadata(number):
    readme = (HERE / "README.md").read_text()
    return f"""Metadata-Version: 2.1
Name: loralei
Version: {number}
Summary: Serves one language model with many LoRA adapters, mixed in every batch
License: Apache-2.0
Keywords: LLM,LoRA,inference,server
Classifier: Development Status :: 4 - Beta
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build-portable/loralei")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=ROOT / "build/packages")
    parser.add_argument("--sbom", type=pathlib.Path, help="the binary's bill of materials")
    options = parser.parse_args()
    if not options.binary.exists():
        sys.exit(f"build_wheel: there is no {options.binary}; tools/packages.sh builds it.")
    number, platform = version(), platform_of(options.binary)
    info, data = f"loralei-{number}.dist-info", f"loralei-{number}.data"
    files = {f"{data}/scripts/loralei": (options.binary.read_bytes(), 0o755)}
    for path in sorted((HERE / "loralei").glob("*")):
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"loralei/{path.name}"] = (path.read_bytes().replace(b"@VERSION@", number.encode()), 0o644)
    files[f"{info}/METADATA"] = (metadata(number).encode(), 0o644)
    files[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: loralei\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n".encode(), 0o644)
    for name in ("LICENSE", "THIRD_PARTY.md"):
        files[f"{info}/licenses/{name}"] = ((ROOT / name).read_bytes(), 0o644)
    if options.sbom:
        files[f"{info}/sboms/loralei.cdx.json"] = (options.sbom.read_bytes(), 0o644)
    record = [f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}"
              for name, (content, _) in sorted(files.items())]
    files[f"{info}/RECORD"] = ("\n".join([*record, f"{info}/RECORD,,"]).encode() + b"\n", 0o644)
    options.output.mkdir(parents=True, exist_ok=True)
    wheel = options.output / f"loralei-{number}-py3-none-{platform}.whl"
    # The first time that a zip can say: what is in it has none of its own.
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (content, mode) in sorted(files.items(), key=lambda one: (one[0].startswith(info), one[0])):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content)
    print(os.path.relpath(wheel))


if __name__ == "__main__":
    main()
