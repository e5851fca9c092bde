"""The mutations of the table of faults, ``docs/explanation/fault-matrix.md``."""

from __future__ import annotations

from dataclasses import replace

from tests.mutations.mutation import Mutation

FRAMES = "native/engine/peer_frames.cc"
HEARTBEAT = "native/engine/membership/heartbeat.cc"
MEMBERSHIP = "native/engine/membership/membership.cc"
FRAME = "native/transport/frame.cc"
COORDINATOR = "native/engine/negotiation/coordinator.cc"
STALLS = "native/engine/negotiation/stall_reporter.cc"
AUTHENTICATION = "spark_estimator/security/authentication.py"
HANDSHAKES = "spark_estimator/security/handshake_server.py"
CONNECTOR = "spark_estimator/collectives/connections/connector.py"
OUTGOING = "spark_estimator/collectives/connections/outgoing.py"
DESCRIPTORS = "spark_estimator/collectives/connections/descriptors.py"
CONTEXT = "spark_estimator/collectives/context.py"
FAILURES = "spark_estimator/launch/job/failures.py"
CHILD = "spark_estimator/launch/worker/child_process.py"
REPORT = "spark_estimator/launch/worker/worker_report.py"
WORKER = "spark_estimator/launch/worker/worker.py"
MONITOR = "spark_estimator/launch/job/monitor.py"

NAMESPACES = "tests/scenarios/collectives/test_namespaces.py"

# Each is a mutation of several rows, which have different tests.
NO_SILENCE = Mutation(
    "",
    "no rank is lost by its silence",
    HEARTBEAT,
    "return now - heard_at(quietest) > silence_ ? std::optional<int>(quietest) : std::nullopt;",
    "return std::nullopt;",
    (),
)
NAMES_ITSELF = Mutation(
    "",
    "who misses a silent rank names itself",
    MEMBERSHIP,
    "return RankLost(rank, std::string(",
    "return RankLost(rank_, std::string(",
    (),
)
IMPATIENT = Mutation(
    "",
    "a tenth of a second of silence is too much",
    HEARTBEAT,
    "Ticks(std::max(silence, 3 * interval))",
    "Ticks(Seconds(0.1))",
    (),
)
NO_WARNING = Mutation(
    "",
    "no line names who keeps the others waiting",
    STALLS,
    "if (warning_seconds_ > 0) {",
    "if (false) {",
    (),
)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "1",
        "the end of a connection is not reported: only silence is",
        FRAMES,
        "    if (!links_.is_open(rank)) LinkEnded(rank);\n"
        "    for (const int source : sources) SE_RETURN_IF_ERROR(HandleInbox(source));\n"
        "  }\n"
        "  SE_RETURN_IF_ERROR(HandleInbox(rank));\n"
        "  if (links_.is_open(rank) || membership_.has_left(rank)) return Status::Ok();\n",
        "    if (!links_.is_open(rank)) links_.StopWatching(rank);\n"
        "    for (const int source : sources) SE_RETURN_IF_ERROR(HandleInbox(source));\n"
        "  }\n"
        "  SE_RETURN_IF_ERROR(HandleInbox(rank));\n"
        "  if (true) return Status::Ok();\n",
        (
            "tests/scenarios/collectives/test_faults.py::test_every_op_that_waits_for_a_killed_rank_names_it[2-1-shared]",
            "tests/scenarios/collectives/test_faults.py::test_a_rank_killed_while_bytes_flow[shared]",
            "tests/scenarios/collectives/test_large_groups.py::test_a_rank_that_dies_is_named_by_all",
            f"{NAMESPACES}::test_a_killed_rank_is_named_by_its_end_and_not_by_its_silence",
            "native/tests/engine/large_group_test.cc::ADeathIsReportedOnAllRanks",
        ),
        seconds=400,
    ),
    Mutation(
        "1",
        "the end of a connection is reported 4 s late",
        FRAMES,
        '  return membership_.RankLost(rank, "is lost: " + links_.at(rank).closed_reason());',
        "  for (const Time end = After(Seconds(4)); Clock::now() < end;) continue;\n"
        '  return membership_.RankLost(rank, "is lost: " + links_.at(rank).closed_reason());',
        ("tests/scenarios/collectives/test_faults.py::test_a_death_is_reported_at_once",),
    ),
    replace(
        NO_SILENCE,
        row="2",
        tests=("native/tests/engine/large_group_test.cc::AFrozenRankIsReportedOnAllRanks",),
        hangs=True,
        seconds=60,
    ),
    replace(
        NO_SILENCE,
        row="2",
        tests=(
            "tests/scenarios/collectives/test_faults.py::test_a_rank_that_freezes_after_another_has_left_is_named",
            f"{NAMESPACES}::test_a_rank_that_is_stopped_for_good_is_named[one host x2-3000000]",
        ),
    ),
    Mutation(
        "2",
        "a supervisor does not see that its worker is stopped",
        "spark_estimator/launch/worker/child_process.py",
        'return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"',
        "return False",
        (
            "tests/launch/test_local.py::test_a_rank_that_freezes_while_another_waits_for_it_is_named",
            "tests/launch/test_local.py::test_a_rank_that_freezes_after_its_last_collective_is_named[1]",
        ),
        hangs=True,
        seconds=600,
    ),
    Mutation(
        "2",
        "a supervisor's silence is not judged",
        "spark_estimator/observe/silence.py",
        "if self._lost_after and self.seconds >= self._lost_after:",
        "if False:",
        ("tests/launch/spark/test_stage_job.py::test_a_frozen_supervisor_is_named_and_ends_the_job",),
        hangs=True,
    ),
    Mutation(
        "3",
        "two seconds of silence are too many",
        HEARTBEAT,
        "Ticks(std::max(silence, 3 * interval))",
        "Ticks(Seconds(2))",
        (
            "tests/scenarios/collectives/test_faults.py::test_a_paused_rank_is_no_dead_rank",
            f"{NAMESPACES}::test_a_pause_does_no_harm[one host x2-3000000]",
            "native/tests/engine/membership/heartbeat_test.cc::AStoppedPeerThatComesBackSurvives",
        ),
    ),
    Mutation(
        "4",
        "an exception loses its traceback",
        FAILURES,
        "    if traceback:\n        error.__cause__ = RemoteTraceback(traceback)",
        "    if False:\n        error.__cause__ = RemoteTraceback(traceback)",
        ("tests/launch/test_local.py::test_an_exception_comes_with_its_traceback",),
    ),
    Mutation(
        "4",
        "a process that ends does not leave the job",
        CONTEXT,
        "def _leave_at_exit() -> None:\n    shutdown()",
        "def _leave_at_exit() -> None:\n    pass",
        (
            "tests/scenarios/collectives/test_faults.py::test_an_exception_on_one_rank_reaches_the_others_as_its_leaving",
        ),
    ),
    Mutation(
        "5",
        "who waits for a rank that has left names itself",
        MEMBERSHIP,
        "                  NameOf(first_leaver_) +\n",
        "                  NameOf(rank_) +\n",
        (
            "tests/scenarios/collectives/test_disagreements.py::test_who_waits_for_a_rank_that_has_left_is_told",
            "tests/launch/cli/test_main.py::test_a_rank_that_ends_early_without_an_error_is_named_by_one_that_waited_for_it",
        ),
    ),
    Mutation(
        "6",
        "sys.exit() counts as a return",
        WORKER,
        "        return _fail(pipe, spec, failures.EXITED, message, error, exit_code=status)",
        "        value = None",
        ("tests/launch/test_local.py::test_sys_exit_is_a_failure[0-0]",),
        hangs=True,
    ),
    Mutation(
        "6",
        "an exit status of 0 counts as a return",
        REPORT,
        "return self.has_returned\n\n    def _fail",
        "return status == 0\n\n    def _fail",
        ("tests/launch/test_local.py::test_an_end_without_a_word_is_a_failure[0]",),
        hangs=True,
    ),
    Mutation(
        "7",
        "a signal is named by its number only",
        CHILD,
        'return f"signal {-exit_code}" + (f" ({SIGNALS[-exit_code]})" if -exit_code in SIGNALS else "")',
        'return f"signal {-exit_code}"',
        (
            "tests/launch/test_local.py::test_a_signal_is_named",
            "tests/launch/cli/test_main.py::test_a_signal_is_named",
            "tests/launch/worker/test_worker_report.py::test_a_worker_that_reports_nothing",
        ),
    ),
    Mutation(
        "7",
        "a crash leaves no Python stack",
        WORKER,
        "faulthandler.enable()  #",
        "pass  #",
        ("tests/launch/test_local.py::test_a_signal_is_named",),
    ),
    replace(
        NO_WARNING,
        row="8",
        tests=(
            "tests/scenarios/collectives/test_surroundings.py::test_a_rank_whose_interpreter_is_held_for_long_is_waited_for_and_named",
        ),
    ),
    Mutation(
        "9",
        "that an executor was lost is not reported",
        "spark_estimator/launch/spark/rank_events.py",
        'message = "is out of contact: its Spark executor, or its host, has died or was cut off"',
        'message = "has ended"',
        ("tests/scenarios/launch/test_spark_everywhere.py::test_a_job_that_lost_an_executor_is_started_anew[local]",),
        seconds=500,
    ),
    Mutation(
        "10",
        "that the way to a host was lost is not reported",
        "spark_estimator/launch/agent/worker_handle.py",
        'message = f"is out of contact: {why}"',
        'message = "has ended"',
        ("tests/scenarios/launch/test_ssh_losses.py::test_nothing_is_left_and_who_was_lost_is_named[ssh]",),
    ),
    replace(
        NAMES_ITSELF,
        row="10",
        tests=(f"{NAMESPACES}::test_a_host_that_is_cut_off_at_work_is_named_on_both_sides[2x2-3000000]",),
    ),
    replace(
        NO_SILENCE,
        row="11",
        tests=(
            "tests/scenarios/collectives/test_links.py::test_both_sides_of_a_cut_come_to_the_same_verdict",
            f"{NAMESPACES}::test_a_host_that_is_cut_off_at_rest_is_named_on_both_sides",
        ),
        hangs=True,
        seconds=600,
    ),
    replace(
        NAMES_ITSELF,
        row="12",
        tests=("tests/scenarios/collectives/test_links.py::test_both_sides_of_a_cut_come_to_the_same_verdict",),
    ),
    replace(
        IMPATIENT,
        row="12",
        tests=("tests/scenarios/collectives/test_links.py::test_a_link_that_flaps_or_is_uneven_is_waited_for",),
    ),
    replace(
        NO_SILENCE,
        row="13",
        tests=("native/tests/engine/membership/heartbeat_test.cc::BothSidesOfACutNoticeIt",),
    ),
    replace(
        NAMES_ITSELF,
        row="13",
        tests=(f"{NAMESPACES}::test_a_host_that_is_cut_off_at_work_is_named_on_both_sides[2x2-3000000]",),
    ),
    Mutation(
        "14",
        "only heartbeats, which wait behind the tensors, show that a rank lives",
        HEARTBEAT,
        "Ticks(std::max(silence, 3 * interval))",
        "Ticks(Seconds(1.2))",
        (f"{NAMESPACES}::test_a_link_that_is_slow_is_waited_for",),
    ),
    Mutation(
        "15",
        "a handshake has a millisecond",
        OUTGOING,
        "context, timeout=remaining, encrypted=encrypted)",
        "context, timeout=timedelta(milliseconds=1), encrypted=encrypted)",
        ("tests/scenarios/collectives/test_links.py::test_ranks_connect_over_a_link_that_is_uneven",),
    ),
    replace(
        IMPATIENT,
        row="15",
        tests=("tests/scenarios/collectives/test_links.py::test_a_link_that_flaps_or_is_uneven_is_waited_for",),
    ),
    Mutation(
        "16",
        "a rank that can't be reached is not named",
        OUTGOING,
        'make_absent_error(rendezvous, group, sorted(failures), f"could not be reached ({reasons})", settings)',
        'make_absent_error(rendezvous, group, [rendezvous.rank], f"could not reach all ({reasons})", settings)',
        ("tests/collectives/connections/test_outgoing.py::test_a_rank_that_does_not_answer_is_named_at_the_deadline",),
    ),
    Mutation(
        "16",
        "a rank that doesn't connect is not named",
        CONNECTOR,
        'raise make_absent_error(self.rendezvous, group, absent, "did not connect", settings)',
        'raise make_absent_error(self.rendezvous, group, [self._facts.rank], "did not connect", settings)',
        ("tests/collectives/connections/test_connector.py::test_a_rank_that_answers_but_does_not_call_is_named",),
    ),
    Mutation(
        "17",
        "differences between requests are not looked for",
        COORDINATOR,
        'if (!text.empty()) ready.error = "Mismatched " + Upper(OpName(first.op)) + " " + what + ": " + text;',
        "if (text.empty()) return;",
        ("tests/scenarios/collectives/test_disagreements.py::test_every_rank_is_told_what_differs[reduce op-2]",),
    ),
    replace(
        NO_WARNING,
        row="17",
        tests=(
            "tests/scenarios/collectives/test_disagreements.py::test_different_names_are_told_and_fail_in_the_end_if_asked",
        ),
    ),
    Mutation(
        "17",
        "what waits for ever never fails",
        STALLS,
        "if (shutdown_seconds_ > 0) coordinator",
        "if (false) coordinator",
        (
            "tests/scenarios/collectives/test_disagreements.py::test_different_names_are_told_and_fail_in_the_end_if_asked",
        ),
    ),
    Mutation(
        "18",
        "a name may be in flight twice",
        "native/engine/requests/request_table.cc",
        "if (request->unnamed == nullptr && !Register(*request)) {",
        "if (request->unnamed == nullptr && !Register(*request) && false) {",
        ("tests/scenarios/collectives/test_disagreements.py::test_a_name_in_flight_is_refused_at_once_and_here_only",),
    ),
    Mutation(
        "18",
        "after shutdown() the engine is still in use",
        CONTEXT,
        "membership, _membership = _membership, None",
        "membership = _membership",
        ("tests/scenarios/collectives/test_disagreements.py::test_after_shutdown_there_are_no_collectives",),
    ),
    Mutation(
        "19",
        "a payload's checksum is not checked",
        FRAME,
        "if (Crc32c(payload) != header.payload_crc) {",
        "if (false) {",
        ("native/tests/transport/frame_test.cc::EveryFlippedBitIsFound",),
    ),
    Mutation(
        "19",
        "a header's checksum is not checked",
        FRAME,
        "header.header_crc != HeaderCrc(header)",
        "false",
        ("native/tests/transport/frame_test.cc::EveryFlippedBitIsFound",),
    ),
    Mutation(
        "19",
        "a record's tag is not checked",
        "native/crypto/records.cc",
        "if (library_->EVP_CipherFinal_ex(context_, out + bytes, &moved) != 1) return false;",
        "(void)library_->EVP_CipherFinal_ex(context_, out + bytes, &moved);",
        (
            "native/tests/crypto/records_test.cc::EveryFlippedBitIsFound",
            "native/tests/engine/encrypted_test.cc::TamperingEndsTheJobAndNamesTheRank",
        ),
        hangs=True,
        seconds=60,
    ),
    Mutation(
        "20",
        "a stranger's nonsense ends the server",
        HANDSHAKES,
        "            self._drop(handshake, str(error))\n        except Exception:",
        "            raise\n        except Exception:",
        (
            "tests/scenarios/collectives/test_strangers.py::test_garbage[shared-garbage1]",
            "tests/observe/test_channel.py::test_strangers_do_no_harm",
        ),
        seconds=600,
    ),
    Mutation(
        "21",
        "any bytes are the header of a frame",
        FRAME,
        "if (header.magic != kMagic || header.header_crc != HeaderCrc(header) || "
        "header.payload_bytes > kMaxFrameBytes) {",
        "if (false) {",
        (
            "native/tests/engine/failure_test.cc::NonsenseBreaksTheLinkNotTheProcess",
            "native/tests/transport/frame_test.cc::GarbageClosesTheLink",
        ),
        hangs=True,
        seconds=60,
    ),
    Mutation(
        "21",
        "any engine may join",
        "native/engine/membership/handshake.cc",
        "if (hello->abi_version != SE_ABI_VERSION) {",
        "if (false) {",
        ("native/tests/engine/membership/handshake_test.cc::OtherHellosAreRefused",),
    ),
    Mutation(
        "22",
        "connections without a proof are not limited in number",
        HANDSHAKES,
        "if len(self.in_progress) >= self.capacity:",
        "if False:",
        ("tests/security/test_handshake_server.py::test_ten_thousand_strangers_keep_no_friend_out",),
    ),
    Mutation(
        "22",
        "the silent are not closed",
        HANDSHAKES,
        "if handshake.deadline > now:",
        "if True:",
        (
            "tests/scenarios/collectives/test_strangers.py::test_a_flood[shared]",
            "tests/scenarios/collectives/test_strangers.py::test_silence_and_slowness[shared]",
        ),
        seconds=400,
    ),
    Mutation(
        "23",
        "nonces are not new",
        AUTHENTICATION,
        "return cls(0, secrets.token_bytes(32), None)",
        "return cls(0, bytes(32), None)",
        ("tests/security/test_authentication.py::test_a_recorded_handshake_opens_nothing",),
    ),
    Mutation(
        "23",
        "a connection may be for another job",
        "spark_estimator/collectives/connections/connection.py",
        "if stated != tag:",
        "if False:",
        ("tests/collectives/connections/test_connector.py::test_another_jobs_context_is_refused",),
    ),
    Mutation(
        "24",
        "a rank without memory to share ends",
        CONNECTOR,
        '_log.warning("rank %d has no shared memory and uses sockets only: %s", self._facts.rank, error)\n'
        "            return -1",
        "raise",
        (
            "tests/collectives/connections/test_connector.py::test_without_memory_to_share_there_is_a_warning_and_no_segment",
            "tests/scenarios/collectives/test_shared_memory.py::test_ranks_without_memory_to_share_warn_once_and_use_sockets",
        ),
    ),
    Mutation(
        "24",
        "a rank without memory to share does not warn",
        CONNECTOR,
        '_log.warning("rank %d has no shared memory',
        '_log.debug("rank %d has no shared memory',
        (
            "tests/scenarios/collectives/test_shared_memory.py::test_ranks_without_memory_to_share_warn_once_and_use_sockets",
        ),
    ),
    Mutation(
        "24",
        "memory that the system refuses is handed out",
        "native/transport/arena.cc",
        "wanted); failed != 0) {\n    taken_.erase",
        "wanted); failed == -1) {\n    taken_.erase",
        ("native/tests/transport/arena_test.cc::TheSystemRefuses",),
    ),
    Mutation(
        "25",
        "shared memory is a file",
        "native/transport/segment.cc",
        'UniqueFd made(memfd_create("spark_estimator", MFD_CLOEXEC | MFD_ALLOW_SEALING));',
        'UniqueFd made(open((std::string(getenv("TMPDIR")) + "/spark_estimator." + std::to_string(getpid())).c_str(), '
        "O_CREAT | O_RDWR, 0600));",
        ("tests/scenarios/collectives/test_shared_memory.py::test_ranks_that_are_killed_leave_no_shared_memory",),
        also=(
            "if (fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {",
            "if (false) {",
        ),
    ),
    Mutation(
        "25",
        "a program that a rank starts holds its memory",
        "native/transport/segment.cc",
        "MFD_CLOEXEC | MFD_ALLOW_SEALING",
        "MFD_ALLOW_SEALING",
        ("tests/scenarios/collectives/test_shared_memory.py::test_ranks_that_are_killed_leave_no_shared_memory",),
    ),
    Mutation(
        "26",
        "a forked child keeps the engine's descriptors",
        CONTEXT,
        "        _membership.abandon_after_fork()\n",
        "",
        ("tests/scenarios/collectives/test_faults.py::test_a_forked_child_cannot_use_the_job_and_harms_nothing",),
    ),
    Mutation(
        "26",
        "programs that a rank starts inherit its sockets",
        CONNECTOR,
        "listener.set_inheritable(False)",
        "listener.set_inheritable(True)",
        ("tests/scenarios/collectives/test_faults.py::test_children_of_every_kind_while_collectives_run",),
    ),
    Mutation(
        "27",
        "the kernel's killer is not looked for",
        CHILD,
        "if count_oom_kills() > before.oom_kills:",
        "if False:",
        (
            "tests/launch/worker/test_child_process.py::test_only_a_kill_is_explained_by_memory",
            "tests/scenarios/launch/test_memory_limit.py::test_the_rank_that_outgrew_its_control_group_is_named",
        ),
    ),
    Mutation(
        "27",
        "the peak of a rank's memory is not reported",
        CHILD,
        "if peak_bytes > before.peak_bytes:",
        "if False:",
        ("tests/launch/test_local.py::test_memory_is_told_when_the_kernel_may_have_killed",),
    ),
    Mutation(
        "27",
        "a rank without memory does not name itself",
        MEMBERSHIP,
        'return why.Within(name + " failed");',
        "return why;",
        ("tests/scenarios/collectives/test_faults.py::test_a_rank_without_memory_says_so_to_all",),
    ),
    Mutation(
        "28",
        "file descriptors are not counted",
        DESCRIPTORS,
        'return describe_shortage(count, len(opened)) if are_used_up(error) else ""',
        'return ""',
        ("tests/scenarios/collectives/test_faults.py::test_a_rank_without_file_descriptors_says_that_of_itself",),
    ),
    Mutation(
        "28",
        "threads are not counted",
        DESCRIPTORS,
        "_THREADS = 4  #",
        "_THREADS = 0  #",
        ("tests/scenarios/collectives/test_surroundings.py::test_a_rank_without_threads_says_so",),
    ),
    Mutation(
        "29",
        "the previous file is removed before the new one is there",
        "spark_estimator/store/replacement.py",
        "    with _claim(target, _create) as (names, descriptor, opened):\n",
        "    _remove(target)\n    with _claim(target, _create) as (names, descriptor, opened):\n",
        (
            "tests/store/test_replacement.py::test_a_full_disk_keeps_the_previous_one",
            "tests/store/test_replacement.py::test_a_fault_at_each_system_call_leaves_a_whole_file[signal=KILL]",
        ),
    ),
    Mutation(
        "29",
        "a file that is written in place has no copy",
        "spark_estimator/store/in_place.py",
        'with fs.open(following, "wb") as file:',
        'with fs.open(path, "wb") as file:',
        ("tests/store/test_in_place.py::test_a_full_disk_keeps_the_previous_file",),
    ),
    Mutation(
        "29",
        "a checkpoint is complete before its parts are",
        "spark_estimator/extensions/checkpoint/part_writer.py",
        'names = [folders.make_note_name(rank) for rank in range(job["size"])]\n',
        'names = [folders.make_note_name(rank) for rank in range(job["size"])]\n'
        '        self._store.write(posixpath.join(path, folders.METADATA), b"")\n',
        (
            "tests/extensions/checkpoint/test_part_writer.py"
            "::test_a_fault_at_each_system_call_leaves_a_whole_checkpoint[signal=KILL]",
        ),
    ),
    Mutation(
        "29",
        "rows that have no room do not name the disk",
        "spark_estimator/data/rank/spool.py",
        "if error.errno in (errno.ENOSPC, errno.EDQUOT):",
        "if False:",
        ("tests/scenarios/estimators/test_no_room.py::test_a_full_disk",),
    ),
    Mutation(
        "30",
        "a store that is away does not matter",
        "spark_estimator/estimators/persistence/checkpoint.py",
        "_MOST_LOST = 2",
        "_MOST_LOST = 200",
        ("tests/estimators/persistence/test_checkpoint.py::test_a_store_that_is_away",),
    ),
    Mutation(
        "30",
        "the folder of a store that is away is not named",
        "spark_estimator/data/materialize.py",
        "folder {parent} cannot be listed",
        "folder cannot be listed",
        ("tests/scenarios/estimators/test_no_room.py::test_a_store_that_is_away",),
    ),
    Mutation(
        "31",
        "Ctrl-C leaves the ranks running",
        MONITOR,
        "            if not finished:\n",
        "            if False:\n",
        ("tests/scenarios/launch/test_interruption.py::test_ctrl_c_ends_all_ranks_and_the_next_job_works[processes]",),
    ),
    Mutation(
        "32",
        "workers outlive their parent",
        WORKER,
        "    bind_to_parent(parent)\n",
        "",
        (
            "tests/scenarios/launch/test_interruption.py::test_a_driver_that_is_killed_leaves_nothing[processes]",
            "tests/scenarios/launch/test_interruption.py::test_horovodrun_takes_its_ranks_along[9]",
        ),
    ),
    Mutation(
        "33",
        "there are always enough slots",
        "spark_estimator/launch/spark/slots.py",
        "if slots.count is None or slots.count >= size or _count_promised_slots(conf) >= size:",
        "if True:",
        ("tests/launch/spark/test_slots.py::test_too_many_ranks_are_refused_with_arithmetic_and_remedy",),
    ),
    Mutation(
        "33",
        "the limit of cores is a limit of executors",
        "spark_estimator/launch/spark/dynamic_allocation.py",
        "count = int(cores) // cores_each",
        "count = int(cores)",
        ("tests/launch/spark/test_dynamic_allocation.py::test_too_many_ranks_are_refused_with_the_setting_to_change",),
    ),
    Mutation(
        "34",
        "jobs of one program share what they know of their ranks",
        "spark_estimator/launch/local.py",
        "peers: dict[int, PeerFacts] = {}",
        'peers: dict[int, PeerFacts] = globals().setdefault("_peers", {})',
        ("tests/launch/test_local.py::test_jobs_do_not_meet",),
    ),
    Mutation(
        "35",
        "the engine's clock is the wall clock",
        "native/base/clock.h",
        "using Clock = std::chrono::steady_clock;",
        "using Clock = std::chrono::system_clock;",
        ("tests/scenarios/collectives/test_surroundings.py::test_a_clock_that_jumps_matters_to_nothing",),
        seconds=600,
    ),
    Mutation(
        "36",
        "NCCL's errors between operations are not looked at",
        "native/gpu/nccl_group.cc",
        "if (result == kNcclSuccess) result = state;",
        "if (result != kNcclSuccess) result = state;",
        (
            "native/tests/gpu/gpu_failure_test.cc::InitThatHangsEndsAtTheDeadline",
            "native/tests/gpu/gpu_engine_failure_test.cc::AnAsyncErrorEndsTheGroup",
        ),
        hangs=True,
        seconds=90,
    ),
    Mutation(
        "36",
        "NCCL is waited for for ever",
        "native/gpu/nccl_group.cc",
        "if (SecondsSince(start) >= limit.count()) return",
        "if (false) return",
        (
            "tests/scenarios/collectives/test_gpu_failures.py::test_a_rank_that_never_comes_to_nccl_is_not_waited_for_for_ever",
        ),
    ),
    Mutation(
        "37",
        "each round leaves descriptors open",
        DESCRIPTORS,
        "            with suppress(OSError):\n                os.close(descriptor)",
        "            descriptor += 1",
        ("tests/collectives/test_context.py::test_sixty_rounds",),
    ),
)
