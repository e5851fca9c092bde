"""`TransformersEstimator.fit` on a real session: what it learns, what its folders hold, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TransformersEstimator, TransformersModel
from tests.scenarios.huggingface import tiny

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The scores of a model of random numbers are small, with any adapter: its last layer is trained, too.
LORA = {
    "r": 8,
    "lora_alpha": 32,
    "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"],
    "modules_to_save": ["lm_head"],
}


def estimator(**changed: Any) -> TransformersEstimator:
    parameters = {"num_proc": 2, "batch_size": 16, "max_length": 16, "random_seed": 1, "verbose": 0}
    return TransformersEstimator(**{**parameters, **changed})


@pytest.fixture(scope="module")
def reviewer(classifier_folder: str, reviews: DataFrame) -> TransformersModel:
    """A trained classifier."""
    made = estimator(
        model=classifier_folder, label_col="kind", validation="held", epochs=6, learning_rate=5e-3, batch_size=8
    )
    return made.fit(reviews)


def test_it_reaches_its_accuracy(reviewer: TransformersModel, spark: SparkSession) -> None:
    history = reviewer.getHistory()
    assert history[-1]["validation"]["metrics"]["accuracy"] >= 0.95
    assert history[-1]["train"]["loss"] < 0.2 < history[0]["train"]["loss"]
    rows = [(row["text"], "good" if row["label"] else "bad") for row in tiny.sentences(40, seed=9)]
    others = spark.createDataFrame([*rows, (None, "bad")], "text string, answer string")
    predicted = reviewer.setProbabilityCol("probability").transform(others).collect()
    assert numpy.mean([row["kind__output"] == row["answer"] for row in predicted[:-1]]) >= 0.95
    assert predicted[-1]["kind__output"] is None and predicted[-1]["probability"] is None
    assert abs(sum(predicted[0]["probability"]) - 1) < 1e-6
    assert reviewer.predict([text for text, _ in rows]) == [row["kind__output"] for row in predicted[:-1]]


def test_its_folder_is_one_of_transformers(reviewer: TransformersModel, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    path = str(tmp_path / "saved")
    reviewer.save(path)
    texts = [row["text"] for row in tiny.sentences(10, seed=3)]
    words = AutoTokenizer.from_pretrained(path)
    plain = AutoModelForSequenceClassification.from_pretrained(path)
    assert plain.config.id2label == {0: "bad", 1: "good"}
    scores = plain(**words(texts, padding=True, return_tensors="pt")).logits
    labels = [plain.config.id2label[number] for number in scores.argmax(-1).tolist()]
    loaded = TransformersModel.load(path)
    assert loaded.predict(texts) == labels == reviewer.predict(texts)
    assert loaded.getHistory() == reviewer.getHistory() and loaded.uid == reviewer.uid
    (tmp_path / "saved" / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer.json is damaged"):
        TransformersModel.load(path)


@pytest.mark.slow
def test_an_adapter_learns_to_answer_and_loads_in_plain_peft(
    causal_folder: str, chats: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    from peft import PeftModel

    made = estimator(
        model=causal_folder, lora=LORA, epochs=4, learning_rate=1e-2, max_length=32, batch_size=4, max_new_tokens=3
    )
    model = made.fit(chats)
    assert model.getHistory()[-1]["train"]["loss"] < 0.3
    questions = [(row["messages"][:1], row["messages"][1]["content"]) for row in tiny.chats(40, seed=9)]
    frame = spark.createDataFrame(questions, "text array<struct<role:string,content:string>>, answer string")
    rows = model.transform(frame).collect()
    assert numpy.mean([row["text__output"] == row["answer"] for row in rows]) >= 0.95
    path = str(tmp_path / "adapter")
    model.save(path)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()
    plain = PeftModel.from_pretrained(tiny.causal(), path).eval()
    text = torch.tensor([[4, 8, 9, 6, 5]])
    torch.testing.assert_close(plain(text).logits, model.getModel()(text).logits)
    asked = [chat for chat, _ in questions[:5]]
    assert TransformersModel.load(path, base=causal_folder).predict(asked) == [row["text__output"] for row in rows[:5]]


@pytest.mark.slow
def test_names_with_dots(classifier_folder: str, reviews: DataFrame) -> None:
    frame = reviews.limit(64).toDF("a.text", "the.kind", "for.val")
    made = estimator(
        model=classifier_folder, text_col="a.text", label_col="the.kind", validation="for.val", epochs=1, num_proc=1
    )
    rows = made.fit(frame).transform(frame).collect()
    assert {row["the.kind__output"] for row in rows} <= {"good", "bad"} and len(rows) == 64


@pytest.mark.slow
def test_words_get_classes(spark: SparkSession) -> None:
    from transformers import BertConfig, BertForTokenClassification

    texts = [row["text"].split() for row in tiny.sentences(120)]
    rows = [(words, [int(word in tiny.ANIMALS) for word in words]) for words in texts]
    frame = spark.createDataFrame(rows, "text array<string>, tags array<int>")
    torch.manual_seed(0)
    config = BertConfig(vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    made = estimator(
        model=BertForTokenClassification(config),
        tokenizer=tiny.tokenizer(),
        label_col="tags",
        epochs=4,
        learning_rate=1e-2,
    )
    predicted = made.fit(frame).transform(frame).collect()
    assert all(row["tags__output"] == row["tags"] for row in predicted)


@pytest.mark.slow
def test_packed_texts_are_trained_on_as_one_process_would(causal_folder: str, spark: SparkSession) -> None:
    """The loss is a mean over the tokens of both ranks' rows, however they are divided."""
    texts = [row["text"] for row in tiny.sentences(40)]
    frame = spark.createDataFrame([(text,) for text in texts], "text string").repartition(1)
    made = estimator(
        model=causal_folder,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        lr_scheduler="constant",
        gradient_clip_norm=0,
        max_length=24,
        batch_size=100,
        epochs=3,
    )
    model = made.fit(frame)
    words, net = tiny.tokenizer(), tiny.causal()
    rows = [[*words(text)["input_ids"], words.eos_token_id] for text in texts]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        sums = [
            nn.functional.cross_entropy(net(torch.tensor([row])).logits[0, :-1], torch.tensor(row[1:]), reduction="sum")
            for row in rows
        ]
        loss = torch.stack(sums).sum() / sum(len(row) - 1 for row in rows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert numpy.allclose([entry["train"]["loss"] for entry in model.getHistory()], losses, rtol=1e-4)
    for trained, alone in zip(model.getModel().parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(trained, alone, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_run_resumes_from_its_checkpoint(classifier_folder: str, reviews: DataFrame, tmp_path: Path) -> None:
    def fitted(**changed: Any) -> Any:
        # The schedule of another number of epochs would be another one.
        usual = {"model": classifier_folder, "label_col": "kind", "learning_rate": 1e-3, "lr_scheduler": "constant"}
        made = estimator(**{**usual, **changed})
        return made.fit(reviews).getModel().state_dict()

    whole = fitted(epochs=2)
    fitted(epochs=1, store=str(tmp_path), run_id="reviews")
    resumed = fitted(epochs=2, store=str(tmp_path), run_id="reviews")
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=0)
    with pytest.raises(
        DataError, match=r"from another training: .*weight_decay=0.0 in the checkpoint, weight_decay=0.1 now"
    ):
        fitted(epochs=3, store=str(tmp_path), run_id="reviews", weight_decay=0.1)
    tiny.classifier(seed=6).save_pretrained(tmp_path / "other")
    with pytest.raises(DataError, match=r"from another training: .*pretrained model with the digest"):
        fitted(
            epochs=3,
            store=str(tmp_path),
            run_id="reviews",
            model=str(tmp_path / "other"),
            tokenizer=classifier_folder,
        )


@pytest.mark.slow
def test_tokens_are_written_to_the_store_once(causal_folder: str, spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(row["text"],) for row in tiny.sentences(60)], "text string")
    made = estimator(model=causal_folder, packing=False, materialize=True, store=str(tmp_path), epochs=1)
    losses = [made.fit(frame).getHistory()[0]["train"]["loss"] for _ in range(2)]
    assert losses[0] == losses[1]
    assert list(tmp_path.rglob("*.parquet"))


def test_a_saved_estimator_has_its_parameters(classifier_folder: str, tmp_path: Path) -> None:
    made = estimator(model=classifier_folder, label_col="kind", lora={"r": 2}, tokenizer=classifier_folder)
    made.save(str(tmp_path / "estimator"))
    loaded = TransformersEstimator.load(str(tmp_path / "estimator"))
    for name in ("model", "tokenizer", "lora", "label_col", "max_length"):
        assert loaded.getOrDefault(name) == made.getOrDefault(name)


def test_arguments_of_lora_may_be_a_config() -> None:
    from peft import LoraConfig

    made = estimator(lora=LoraConfig(r=4, target_modules=["b", "a"]))
    assert made.getLora() == {"r": 4, "target_modules": ["a", "b"]}
    with pytest.raises(TypeError, match=r"lora must be a dict of the arguments of peft\.LoraConfig"):
        estimator(lora=8)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"model": None}, ValueError, "model is required: a folder, a name on the Hugging Face Hub, or a model of"),
        ({"text_col": "texts"}, DataError, r"text_col='texts': the DataFrame has no column 'texts', but .*'text'"),
        ({"label_col": None, "task": "classification"}, ValueError, "task='classification' needs label_col"),
        ({"task": "causal"}, ValueError, "task='causal' learns the texts themselves: leave label_col='kind' out"),
        ({"task": "token_classification"}, DataError, "column 'text' has type string; .* needs an array of words"),
        ({"text_col": "held"}, DataError, "column 'held' has type boolean; task='classification' needs a text"),
        ({"labels": ["a", "b", "a"]}, ValueError, "labels contains a class twice"),
        ({"labels": ["a", "b", "c"], "model": "object"}, DataError, "the model has 2 classes, and the column 'kind' 3"),
        ({"lora": {"r": 2}, "model": "object"}, ValueError, "lora needs model to be a folder or a name on the Hugging"),
        ({"optimizer": torch.optim.SGD, "weight_decay": 0.1}, ValueError, "leave weight_decay out"),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters()), 1)},
            TypeError,
            "lr_scheduler must be a name, or a function of the optimizer, which the ranks make",
        ),
        ({"max_length": 100}, DataError, "max_length=100 is more than the 64 tokens that the model takes"),
        ({"checkpoint_every_steps": 5}, ValueError, "checkpoint_every_steps needs a store"),
        ({"validation": "no"}, DataError, "validation='no': the DataFrame has no column 'no'"),
    ],
)
def test_it_refuses_before_it_starts(
    classifier_folder: str, reviews: DataFrame, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    if changed.get("model") == "object":
        changed = {**changed, "model": tiny.classifier(), "tokenizer": tiny.tokenizer()}
    made = estimator(**{"model": classifier_folder, "label_col": "kind", **changed})
    with pytest.raises(error, match=message):
        made.fit(reviews)


def test_what_it_does_not_take(classifier_folder: str) -> None:
    with pytest.raises(ValueError, match=r"call fit\(spark.read.parquet\(path\)\)"):
        estimator(model=classifier_folder).fit_on_parquet()
    with pytest.raises(TypeError, match="has no parameter 'feature_cols'"):
        TransformersEstimator(feature_cols=["text"])
    with pytest.raises(ValueError, match="task must be one of"):
        estimator(task="translation")


class NotStarted:
    """A backend of the user's that starts no rank."""

    def num_processes(self) -> int:
        return 1

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> Any:
        raise AssertionError("no rank starts")


def test_a_schedule_that_counts_batches_is_named(reviews: DataFrame, classifier_folder: str) -> None:
    from transformers import get_linear_schedule_with_warmup

    made = estimator(
        num_proc=None,
        backend=NotStarted(),
        model=classifier_folder,
        label_col="kind",
        lr_scheduler=lambda optimizer: get_linear_schedule_with_warmup(optimizer, 0, 500),
    )
    with pytest.warns(UserWarning, match=r"lr_scheduler has LambdaLR\(num_training_steps=500\), and .* \(epochs=1\)"):
        with pytest.raises(ValueError, match=r"starts the ranks with its own run\(\)"):
            made.fit(reviews)
