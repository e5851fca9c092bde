// A worker process's bond to its parent, and its end, for the C ABI.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "spark_estimator/engine.h"

namespace {

// A real-time signal that neither Python, glibc nor the usual runtimes use.
int ParentDeathSignal() { return SIGRTMAX - 3; }

// Async-signal-safe: one system call. 0 is the caller's own process group, itself included.
void KillOwnGroup(int) { kill(0, SIGKILL); }

int32_t exit_status = 1;

}  // namespace

extern "C" int32_t se_die_with_parent(int32_t parent_pid) {
  if (getpgrp() != getpid()) return SE_INVALID_ARGUMENT;  // the signal would kill the leader of the group
  struct sigaction action{};
  action.sa_handler = KillOwnGroup;
  sigfillset(&action.sa_mask);
  if (sigaction(ParentDeathSignal(), &action, nullptr) != 0) return SE_SYSTEM_ERROR;
  sigset_t unblock;
  sigemptyset(&unblock);
  sigaddset(&unblock, ParentDeathSignal());
  pthread_sigmask(SIG_UNBLOCK, &unblock, nullptr);
  if (prctl(PR_SET_PDEATHSIG, ParentDeathSignal()) != 0) return SE_SYSTEM_ERROR;
  // The parent may have died before the request was made; then there will be no signal.
  return getppid() == parent_pid ? SE_OK : SE_SHUT_DOWN;
}

extern "C" void se_set_exit_status(int32_t status) { exit_status = status; }

extern "C" void se_exit() {
  std::fflush(nullptr);
  _exit(exit_status);
}
