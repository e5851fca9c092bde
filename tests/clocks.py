"""Wall clocks that are wrong, for the processes that load them: time since boot is as it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# Of CLOCK_OFFSET seconds, or an hour forward or back at each read where there is none.
_SOURCE = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static int turn;
static long offset(void) {
  const char* given = getenv("CLOCK_OFFSET");
  return given ? atol(given) : ++turn % 2 ? 3600 : -3600;
}
int clock_gettime(clockid_t clock, struct timespec* now) {
  int status = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += offset();
  return status;
}
int gettimeofday(struct timeval* now, void* zone) {
  struct timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  now->tv_sec = real.tv_sec, now->tv_usec = real.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* result) {
  struct timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  if (result) *result = real.tv_sec;
  return real.tv_sec;
}
"""


def wrong_clock(folder: Path, offset: int | None = None) -> dict[str, str]:
    """The variables with which a process, and what it starts, has a wrong wall clock.

    Args:
        folder: for the library.
        offset: how far it is ahead, in seconds; None: it jumps by two hours at each read.
    """
    if (compiler := shutil.which("gcc") or shutil.which("g++")) is None:
        pytest.skip("there is no C compiler here")
    library = folder / "clock.so"
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-o", str(library), "-"]
    subprocess.run(command, input=_SOURCE, text=True, check=True)
    return {"LD_PRELOAD": str(library), **({} if offset is None else {"CLOCK_OFFSET": str(offset)})}
