"""``horovodrun --config-file``: Horovod's YAML, as the equivalent flags."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_estimator.launch.cli.config_file import read_flags
from spark_estimator.launch.cli.flags import parse_arguments, to_environment

CONFIG = """
---
controller: gloo
verbose: 2

params:
  fusion_threshold_mb: 32   # MiB
  cycle_time_ms: 10.5
  cache-capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: no

autotune:
  enabled: true
  log_file: 'it''s a log.txt'
  warmup_samples: 5
  steps_per_sample: 20
  bayes_opt_max_samples: 50
  gaussian_process_noise: 0.9

timeline:
  filename: "/tmp/a #1.json"
  mark_cycles: False
stall_check:
    enabled: false
    warning_time_seconds: 120
    shutdown_time_seconds: null
library_options:
# none of ours
  thread_affinity: 0,2
  mpi_args: --oversubscribe -x "A B"
  gloo_timeout_seconds: 60
  num_nccl_streams:
logging:
  level: info
  hide_timestamp: false
"""


def test_every_group_of_horovod_s_is_read_and_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    flags = [
        "-np",
        "2",
        "--config-file",
        str(file),
        "--cache-capacity",
        "7",
        "--stall-check",
        "python",
        "--no-autotune",
    ]
    _, options = parse_arguments(flags)
    assert to_environment(options) == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_TIMELINE": "/tmp/a #1.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "0",
        "HOROVOD_STALL_CHECK_DISABLE": "0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_THREAD_AFFINITY": "0,2",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "60",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "0",
    }
    assert options.verbose and options.command == ["python", "--no-autotune"]
    assert [flag for flag, _ in options.explained] == [
        "--cycle-time-ms",
        "--autotune",
        "--autotune-log-file",
        "--autotune-warmup-samples",
        "--autotune-steps-per-sample",
        "--autotune-bayes-opt-max-samples",
        "--autotune-gaussian-process-noise",
        "--mpi-args",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("params:\n  fusion_treshold_mb: 3", r"line 2: 'fusion_treshold_mb' isn't a key in .*'params'"),
        (
            "fusion_threshold_mb: 3",
            r"line 1: 'fusion_threshold_mb' isn't a key outside of a group; .* params, autotune",
        ),
        ("\ntimeline:\n  filename: [a, b]", r"line 3: filename must be a number, a word, or text in quotes"),
        ("params:\n  - 3", r"line 2: entries must have the form key: value"),
        ("params:\n  {a: b}: 3", r"line 2: a key must be a word"),
        ("timeline:\n  filename: 'a", r"line 2: found unexpected end of stream"),
        ("params:\n\tcycle_time_ms: 3", r"line 2: found character '\\t' that cannot start any token"),
        ("verbose: 1\n---\nverbose: 1", r"line 2: but found another document"),
        ("verbose: \x07", r"config\.yaml can't be read: unacceptable character #x0007"),
        ("autotune:\n  enabled: maybe", r"line 2: enabled must be true or false; got 'maybe'"),
        ("  enabled: true", r"line 1: 'enabled' isn't a key outside of a group"),
        ("controller: ccl", r"line 1: controller must be gloo or mpi; got 'ccl'"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=says):
        read_flags(str(file))


def test_of_yaml_all_ways_to_write_the_groups_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("stall-check: {enabled: off}\nparams: &one\n  cycle-time-ms: 3\nautotune:\nverbose: ~\n")
    assert read_flags(str(file)) == ["--no-stall-check", "--cycle-time-ms=3"]
    file.write_text("# nothing\n")
    assert read_flags(str(file)) == []


def test_without_pyyaml_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"--config-file needs PyYAML.*pip install PyYAML"):
        read_flags(str(tmp_path / "config.yaml"))


def test_a_file_that_is_not_there_or_has_a_value_that_no_flag_takes_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("params:\n  fusion_threshold_mb: -1\n")
    for name, says in ((str(file), "-1 is negative"), ("/no/such.yaml", "/no/such.yaml can't be read: No such file")):
        with pytest.raises(SystemExit) as ended:
            parse_arguments(["-np", "2", "--config-file", name, "true"])
        assert ended.value.code == 2 and says in capsys.readouterr().err
