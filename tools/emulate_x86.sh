#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program on an x86-64 processor that this machine is not, for tests of kernels it cannot run itself:
#   tools/emulate_x86.sh MODEL PROGRAM [ARGUMENTS...]     e.g. corei7_icelake_u build/src/ops/ops_test
# MODEL is one of `bochs --help cpu`: corei7_skylake_x has AVX-512, corei7_icelake_u AVX-512 with VNNI. Boots Debian's
# kernel in Bochs with the program and its libraries in memory (about 40 s; what the program does then takes hundreds of
# times as long as here), prints what the program prints, and ends with its exit status; 70 when something is missing
# or the machine ended without one, 124 after LORALEI_EMULATE_SECONDS (3600). Needs `tools/setup.sh long`.
set -euo pipefail
if [ $# -lt 2 ]; then
  echo "usage: tools/emulate_x86.sh MODEL PROGRAM [ARGUMENTS...]" >&2
  exit 2
fi
for tool in bochs xorriso busybox cpio script strip dpkg-deb; do
  if ! command -v "$tool" >/dev/null; then
    echo "tools/emulate_x86.sh: $tool is missing; run tools/setup.sh long" >&2
    exit 70
  fi
done
model=$1 program=$(realpath -e "$2")
shift 2
if ! bochs --help cpu 2>&1 | grep -x "$model" >/dev/null; then
  echo "tools/emulate_x86.sh: Bochs has no processor '$model'; 'bochs --help cpu' lists those it has" >&2
  exit 2
fi
limit_s=${LORALEI_EMULATE_SECONDS:-3600}

work=$(mktemp -d)
# Bochs has a terminal, and so a session, of its own, and does not end with whoever started it.
trap 'if [ -s "$work/pid" ]; then kill -9 "$(cat "$work/pid")" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
mkdir -p "$work"/{package,root/bin,root/proc,root/sys,root/dev,root/tmp,disc}

# The kernel: taken out of its package, not installed.
kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: //p')
if ! (cd "$work/package" && apt-get -o APT::Sandbox::User=root download -qq "$kernel" && dpkg-deb -x ./*.deb .); then
  echo "tools/emulate_x86.sh: no kernel to boot: Debian's package of it could not be fetched; see that" \
    "'apt-get download linux-image-cloud-amd64' works (apt-get update as root brings the list of packages)" >&2
  exit 70
fi
cp "$work"/package/boot/vmlinuz-* "$work/disc/vmlinuz"

# The system: busybox, the program, its libraries.
cp "$(command -v busybox)" "$work/root/bin/busybox"
strip -o "$work/root/program" "$program"
ldd "$program" | grep -oE '/[^ ]+' | while read -r library; do
  mkdir -p "$work/root$(dirname "$library")"
  cp -L "$library" "$work/root$library"
done
{
  cat <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
exec >/dev/ttyS0 2>&1
echo "emulated: begin"
INIT
  printf '/program'
  printf ' %q' "$@"
  cat <<'INIT'

echo "emulated: exit $?"
/bin/busybox sleep 2 # so that the serial line is written out
/bin/busybox poweroff -f
INIT
} >"$work/root/init"
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1 >"$work/disc/initrd")

# What this Bochs says of its newer models and the kernel stumbles over is left out (protection keys, compacted XSAVE
# areas, five levels of pages and a few more; none concerns vectors).
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/disc/"
cat >"$work/disc/isolinux.cfg" <<'BOOT'
DEFAULT linux
PROMPT 0
LABEL linux
 KERNEL vmlinuz
 APPEND initrd=initrd console=ttyS0 quiet nokaslr mitigations=off lpj=4000000 transparent_hugepage=never no5lvl clearcpuid=rdpid,umip,fsrm,pku,ospke,smap,smep,fsgsbase,xsaves,xsavec
BOOT
xorriso -as mkisofs -quiet -o "$work/disc.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 \
  -boot-info-table "$work/disc" 2>/dev/null

cat >"$work/bochsrc" <<BOCHS
config_interface: textconfig
display_library: term
memory: guest=2048, host=2048
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=$model, count=1, ips=50000000
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/serial
log: $work/bochs.log
panic: action=fatal
error: action=ignore
info: action=ignore
BOCHS
touch "$work/serial"
echo c >"$work/continue" # Debian's Bochs has a debugger, which waits to be told
# Its screen is text on a terminal, of which nothing is needed.
TERM=xterm timeout -k 10 "$limit_s" script -qec "echo \$\$ >$work/pid; exec bochs -q -f $work/bochsrc -rc $work/continue" /dev/null \
  </dev/null >"$work/screen" 2>&1 || ended=$?
sed -n '/^emulated: begin/,/^emulated: exit/p' "$work/serial" | tr -d '\r' | grep -v '^emulated: ' || true
if [ "${ended:-0}" -eq 124 ]; then
  echo "tools/emulate_x86.sh: the program had not ended after $limit_s s; give it more with LORALEI_EMULATE_SECONDS" >&2
  exit 124
fi
status=$(sed -n 's/.*emulated: exit \([0-9]*\).*/\1/p' "$work/serial")
if [ -z "$status" ]; then
  echo "tools/emulate_x86.sh: the emulated machine ended before the program; the last it printed:" >&2
  tail -n 20 "$work/serial" "$work/screen" >&2
  exit 70
fi
exit "$status"
