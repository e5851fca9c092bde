from __future__ import annotations

import random

from spark_estimator.launch.log_relay.lines import MAX_LINE_BYTES, LineSplitter, StartUpLines


def test_lines_do_not_depend_on_how_the_bytes_come() -> None:
    text = "one\ntwo\r\nthrée\n\n 10%\r 20%\r100%\nlast"
    expected = ["one", "two", "thrée", "", " 10%", " 20%", "100%", "last"]
    for seed in range(50):
        chance = random.Random(seed)
        splitter, lines, rest = LineSplitter(), [], text.encode()
        while rest:
            cut = chance.randint(1, 6)
            lines += splitter.feed(rest[:cut])
            rest = rest[cut:]
        assert lines + splitter.flush() == expected


def test_bytes_that_are_not_utf_8_do_no_harm() -> None:
    assert LineSplitter().feed(b"\xff\xfe\n") == ["��"]


def test_a_line_without_an_end_does_not_pile_up() -> None:
    splitter = LineSplitter()
    lines = [line for _ in range(64) for line in splitter.feed(b"x" * 10_000)]
    assert {len(line) for line in lines} == {MAX_LINE_BYTES}
    assert sum(map(len, lines + splitter.flush())) == 640_000


HEAD = "I0000 00:00:1796045252.286566    8729 "
START_UP = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    f"{HEAD}port.cc:153] oneDNN custom operations are on. You may see slightly different numerical results.",
    "2026-11-30 13:27:37.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on. You may see",
    f"{HEAD}cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
    f"{HEAD}cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU instructions",
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate "
    "compiler flags.",
    "W0000 00:00:1796045252.3 12 computation_placer.cc:177] computation placer already registered. Please",
    "E0000 00:00:1796045252.3 12 cuda_blas.cc:1418] Unable to register cuBLAS factory: Attempting to register factory "
    "for plugin cuBLAS when one has already been registered",
    "2026-11-30 13:27:37.1: W tensorflow/compiler/tf2tensorrt/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
    f"{HEAD}service.cc:152] XLA service 0x7f0 initialized for platform Host (this does not guarantee that XLA is used)",
    f"{HEAD}service.cc:160]   StreamExecutor device (0): Host, Default Version",
]
OTHERS = [
    "E0000 00:00:1796045256.092669    8729 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: (303)",
    HEAD.replace("I", "E") + "port.cc:153] oneDNN custom operations are on.",
    HEAD.replace("I", "F") + "cudart_stub.cc:31] Could not find cuda drivers on your machine",
    "E0000 00:00:1796045252.3 12 cuda_blas.cc:1418] Unable to register cuBLAS factory: out of memory",
    f"{HEAD}gpu_device.cc:2020] Created device /device:GPU:0 with 77000 MB memory",
    "W0000 00:00:1796045252.3 12 gpu_device.cc:2430] Cannot dlopen some GPU libraries.",
    "Could not find cuda drivers on your machine, GPU will not be used.",
    "TypeError: WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "",
]


def test_the_start_up_lines_of_tensorflow_are_counted_and_all_others_stay() -> None:
    lines = StartUpLines()
    assert lines.without(START_UP[:4]) == []
    left_out = "[{} start-up lines of TensorFlow left out; TF_CPP_MIN_LOG_LEVEL=0 shows them]"
    assert lines.without([*START_UP[4:], *OTHERS]) == [left_out.format(len(START_UP)), *OTHERS]
    assert lines.flush() == []
    assert lines.without([OTHERS[0], START_UP[0]]) == [OTHERS[0]]
    assert lines.flush() == [left_out.format(1)]
