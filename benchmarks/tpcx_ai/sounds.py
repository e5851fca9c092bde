"""Generated speech for use case 2, and its cepstral coefficients."""

from __future__ import annotations

import functools
import io
import wave
from collections.abc import Sequence
from typing import Any

import numpy

RATE = 16_000  # samples a second
COEFFICIENTS = 26
ALPHABET = " 'abcdefghijklmnopqrstuvwxyz"
_WINDOW = RATE * 32 // 1000
_STRIDE = RATE * 20 // 1000
_BANDS = 40
_POWER_BINS = 1 + _WINDOW // 2


def spoken(text: str, chance: numpy.random.Generator) -> bytes:
    """A WAV file in which each letter is a sound of two frequencies, spoken by a voice of some height and speed.

    Letters last 60 to 90 ms, spaces are pauses, and noise is 20 dB below the voice.
    """
    height, speed = chance.uniform(0.95, 1.05), chance.uniform(0.9, 1.1)
    parts = [numpy.zeros(int(RATE * 0.04))]
    for letter in text:
        moments = numpy.arange(int(RATE * chance.uniform(0.06, 0.09) * speed)) / RATE
        if letter == " ":
            parts.append(numpy.zeros(len(moments)))
            continue
        place = ALPHABET.index(letter)
        low, high = height * (300 + 140 * (place % 6)), height * (1300 + 420 * (place // 6))
        tone = numpy.sin(2 * numpy.pi * low * moments) + 0.7 * numpy.sin(2 * numpy.pi * high * moments)
        parts.append(tone * numpy.sin(numpy.pi * numpy.arange(len(moments)) / len(moments)) ** 0.5)
    voice = numpy.concatenate([*parts, numpy.zeros(int(RATE * 0.04))])
    samples = 0.25 * (voice + chance.normal(0, 0.07, len(voice)))
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(RATE)
        written.writeframes((numpy.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def coefficients(content: bytes) -> Any:
    """[frames, COEFFICIENTS] float32 mel-frequency cepstral coefficients of a WAV file, of mean 0 and deviation 1.

    Frames of 32 ms begin every 20 ms.
    """
    with wave.open(io.BytesIO(content)) as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    frames = numpy.lib.stride_tricks.sliding_window_view(samples, _WINDOW)[::_STRIDE]
    power = abs(numpy.fft.rfft(frames * numpy.hanning(_WINDOW), axis=1)) ** 2
    result = numpy.log(power @ _mel_bands().T + 1e-6) @ _cosines().T
    return ((result - result.mean(0)) / (result.std(0) + 1e-3)).astype(numpy.float32)


@functools.cache
def _mel_bands() -> Any:
    """[_BANDS, _POWER_BINS] triangles whose corners are evenly spaced on the mel scale."""

    def mel(frequency: Any) -> Any:
        return 2595 * numpy.log10(1 + frequency / 700)

    corners = 700 * (10 ** (numpy.linspace(0, mel(RATE / 2), _BANDS + 2) / 2595) - 1)
    bins = numpy.linspace(0, RATE / 2, _POWER_BINS)
    rising = (bins - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    falling = (corners[2:, None] - bins) / (corners[2:] - corners[1:-1])[:, None]
    return numpy.clip(numpy.minimum(rising, falling), 0, None)


@functools.cache
def _cosines() -> Any:
    """[COEFFICIENTS, _BANDS] the first rows of the discrete cosine transform."""
    angles = numpy.pi / _BANDS * (numpy.arange(_BANDS) + 0.5)
    return numpy.cos(numpy.arange(COEFFICIENTS)[:, None] * angles)


def edits(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The least number of insertions, deletions and replacements that make one sequence the other."""
    row = list(range(len(second) + 1))
    for number, item in enumerate(first, 1):
        above, row[0] = row[0], number
        for place, compared in enumerate(second, 1):
            above, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, above + (item != compared))
    return row[-1]
