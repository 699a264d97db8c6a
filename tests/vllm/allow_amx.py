"""Ask Linux for the use of AMX as soon as Python starts: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).

install.sh puts it into vLLM's environment as sitecustomize.py. On a processor with AMX, vLLM's attention for CPUs uses
it without having asked, and the kernel ends a process that does; other libraries ask, but only for their first large
product, so an engine whose first prompt is a few tokens long would die of it. Elsewhere the call fails, no more.
https://docs.kernel.org/arch/x86/xstate.html
"""

import ctypes
import platform

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # of Linux on x86-64

if platform.system() == "Linux" and platform.machine() == "x86_64":
    ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
