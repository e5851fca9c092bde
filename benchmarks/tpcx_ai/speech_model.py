"""The Keras models of use case 2: one returns the CTC loss, one the letters' probabilities, with the same layers."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, ops

from benchmarks.tpcx_ai.sounds import ALPHABET, COEFFICIENTS

_WIDTH = 64


class CtcLoss(layers.Layer):  # type: ignore[misc,unused-ignore]
    """The CTC loss [rows, 1] of the letters' logits; 0 is the blank."""

    def call(self, inputs: Any) -> Any:
        """See `keras.layers.Layer.call`.

        Args:
            inputs: logits [rows, frames, letters + 1], the transcript [rows, most letters], and the numbers of frames
                and letters [rows, 1].
        """
        logits, transcript, frames, letters = inputs
        lengths = (ops.cast(ops.squeeze(each, 1), "int32") for each in (letters, frames))
        return ops.expand_dims(ops.ctc_loss(ops.cast(transcript, "int32"), logits, *lengths), 1)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """See `keras.layers.Layer.compute_output_shape`."""
        return input_shape[0][0], 1


def mean_of_outputs(labels: Any, losses: Any) -> Any:
    """The loss function of a model that returns its loss: the labels are among its inputs."""
    return ops.mean(losses, axis=-1)


def training_model(frames: int, most_letters: int) -> Any:
    """The model that is trained; its inputs are the frames, the transcript, and the numbers of frames and letters."""
    sound = keras.Input((frames, COEFFICIENTS), name="frames")
    transcript = keras.Input((most_letters,), name="transcript")
    lengths = [keras.Input((1,), name=name) for name in ("steps", "letters")]
    hidden = layers.Dense(_WIDTH, activation="relu")(sound)
    hidden = layers.Dense(_WIDTH, activation="relu")(hidden)
    hidden = layers.Bidirectional(layers.LSTM(_WIDTH, return_sequences=True), merge_mode="sum")(hidden)
    logits = layers.Dense(len(ALPHABET) + 1, name="logits")(hidden)
    return keras.Model([sound, transcript, *lengths], CtcLoss(name="ctc")([logits, transcript, *lengths]))


def predicting_model(trained: Any) -> Any:
    """The probabilities [rows, frames, letters + 1] of a trained model."""
    logits = trained.get_layer("logits").output
    return keras.Model(trained.get_layer("frames").output, layers.Softmax()(logits))


def custom_objects() -> dict[str, Any]:
    """The classes and functions that loading the trained model needs."""
    return {"CtcLoss": CtcLoss, "mean_of_outputs": mean_of_outputs}
