"""Estimators of scikit-learn, XGBoost and LightGBM compute what their packages compute."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pandas
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.svm import SVR

from tests.doors.built import build_and_run
from webmlc.core.errors import UserError
from webmlc.frontend.doors.export_source import export_source

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((200, 5)).astype(np.float32)
CLASSES = (X[:, 0] + X[:, 1] > 0).astype(int) + (X[:, 2] > 1)
TARGETS = X[:, 0] * 2 + X[:, 1] ** 2
ROWS = X[:20]

CLASSIFIERS = [
    make_pipeline(StandardScaler(), LogisticRegression()),
    RandomForestClassifier(8, max_depth=5, random_state=0),
    HistGradientBoostingClassifier(max_iter=3),
    make_pipeline(MinMaxScaler(), MLPClassifier((8,), max_iter=30, random_state=0)),
    GaussianNB(),
    KNeighborsClassifier(3),
    xgboost.XGBClassifier(n_estimators=4, max_depth=3),
    lightgbm.LGBMClassifier(n_estimators=4, verbose=-1),
]
REGRESSORS = [
    make_pipeline(PolynomialFeatures(2), Ridge()),
    GradientBoostingRegressor(n_estimators=4),
    make_pipeline(PCA(3), SVR()),
    xgboost.XGBRegressor(n_estimators=4, max_depth=3),
    lightgbm.LGBMRegressor(n_estimators=4, verbose=-1),
]


def name_of(estimator: Any) -> str:
    return type(estimator[-1] if hasattr(estimator, "steps") else estimator).__name__


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=name_of)
def test_a_classifier_equals_its_package(estimator: Any) -> None:
    estimator.fit(X, CLASSES)
    built = build_and_run(estimator, {"features": ROWS})
    built.assert_close(
        {"label": estimator.predict(ROWS), "probabilities": estimator.predict_proba(ROWS)}
    )
    assert built.types()["features"] == "float32[batch, 5]"
    assert built.types()["probabilities"] == "float32[batch, 3]"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", REGRESSORS, ids=name_of)
def test_a_regressor_equals_its_package(estimator: Any) -> None:
    estimator.fit(X, TARGETS)
    built = build_and_run(estimator, {"features": ROWS})
    built.assert_close({"variable": estimator.predict(ROWS)[:, None]})


MAILS = [
    "Buy cheap pills now, now!",
    "Lunch at noon tomorrow? a b c",
    "C'est l'été déjà, voilà",
    "Привет мир, как дела",
    "cheap cheap offers: buy NOW",
    "meeting with the team at noon",
    "un été à la mer",
    "это мой мир",
]
KINDS = np.array(["spam", "ham", "fr", "ru"] * 2)
SIZES = np.array([[m.count(" "), len(m)] for m in MAILS], np.float32)
NEW = ["Buy lunch", "été", "мой мир", "nothing of this", ""]

TEXT_PIPELINES = {
    "words": make_pipeline(TfidfVectorizer(), LogisticRegression()),
    "pairs of words": make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), min_df=1, norm="l1"), LogisticRegression()
    ),
    "characters": make_pipeline(
        TfidfVectorizer(analyzer="char", ngram_range=(2, 3)), LogisticRegression()
    ),
    "counts": make_pipeline(CountVectorizer(lowercase=False), MultinomialNB()),
    "presence": make_pipeline(
        CountVectorizer(binary=True, token_pattern=r"(?u)\b\w+\b"), MultinomialNB()
    ),
    "trees": make_pipeline(
        CountVectorizer(stop_words=["the", "at"]), RandomForestClassifier(4, random_state=0)
    ),
    "ASCII pattern": make_pipeline(
        TfidfVectorizer(token_pattern="[a-zA-Z]+"), LogisticRegression()
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TEXT_PIPELINES)
def test_a_pipeline_of_texts_equals_scikit_learn(name: str) -> None:
    estimator = TEXT_PIPELINES[name].fit(MAILS, KINDS)
    built = build_and_run(estimator, {"text": np.array(MAILS + NEW, object)[:, None]})
    assert built.outputs["label"].tolist() == estimator.predict(MAILS + NEW).tolist()
    np.testing.assert_allclose(
        built.outputs["probabilities"], estimator.predict_proba(MAILS + NEW), 1e-4, 1e-5
    )


@pytest.mark.filterwarnings("ignore")
def test_a_classifier_without_probabilities_returns_labels() -> None:
    estimator = make_pipeline(TfidfVectorizer(), SGDClassifier(random_state=0)).fit(MAILS, KINDS)
    outputs = build_and_run(estimator, {"text": np.array(MAILS, object)[:, None]}).outputs
    assert outputs["label"].tolist() == estimator.predict(MAILS).tolist()


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), LogisticRegression()),
        RandomForestClassifier(4, max_depth=3, random_state=0),
        KNeighborsClassifier(3),
    ],
    ids=name_of,
)
def test_classes_that_are_texts_are_labels(estimator: Any) -> None:
    names = np.array(["cat", "dog", "owl"])
    estimator.fit(X, names[CLASSES])
    built = build_and_run(estimator, {"features": ROWS})
    assert built.outputs["label"].tolist() == estimator.predict(ROWS).tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("encoder", [OneHotEncoder(handle_unknown="ignore"), OrdinalEncoder()])
def test_categories_that_are_texts_are_inputs(encoder: Any) -> None:
    rows = np.array([["red", "S"], ["blue", "M"], ["green", "L"], ["red", "M"]] * 2, object)
    estimator = make_pipeline(encoder, LogisticRegression()).fit(rows, KINDS)
    built = build_and_run(estimator, {"features": rows}, example_inputs=rows)
    assert built.outputs["label"].tolist() == estimator.predict(rows).tolist()


@pytest.mark.filterwarnings("ignore")
def test_columns_of_texts_and_numbers_are_inputs() -> None:
    frame = pandas.DataFrame({"text": MAILS, "size": SIZES[:, 1], "colour": ["red", "blue"] * 4})
    columns = make_column_transformer(
        (TfidfVectorizer(), "text"), (StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"])
    )
    estimator = make_pipeline(columns, LogisticRegression()).fit(frame, KINDS)
    inputs = {
        "text": np.array(MAILS, object)[:, None],
        "size": SIZES[:, 1:],
        "colour": np.array(["red", "blue"] * 4, object)[:, None],
    }
    built = build_and_run(estimator, inputs, example_inputs=frame)
    assert built.outputs["label"].tolist() == estimator.predict(frame).tolist()
    np.testing.assert_allclose(
        built.outputs["probabilities"], estimator.predict_proba(frame), 1e-4, 1e-5
    )


def test_terms_that_the_exporter_gets_wrong_are_refused() -> None:
    estimator = make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression())
    with pytest.raises(UserError, match="sublinear_tf"):
        export_source(estimator.fit(MAILS, KINDS))


def test_columns_of_a_data_frame_are_inputs() -> None:
    frame = pandas.DataFrame({"age": X[:, 0].astype(float), "colour": CLASSES})
    columns = make_column_transformer((OneHotEncoder(), ["colour"]), (StandardScaler(), ["age"]))
    estimator = make_pipeline(columns, Ridge()).fit(frame, TARGETS)
    inputs = {
        "age": X[:20, :1],
        "colour": CLASSES[:20, None].astype(np.int64),
    }
    built = build_and_run(estimator, inputs, example_inputs=frame[:1])
    built.assert_close({"variable": estimator.predict(frame[:20])[:, None]}, 1e-4)


def test_native_boosters_equal_their_packages() -> None:
    booster = xgboost.train({"max_depth": 3}, xgboost.DMatrix(X, TARGETS), 4)
    wanted = booster.predict(xgboost.DMatrix(ROWS))[:, None]
    build_and_run(booster, {"features": ROWS}).assert_close({"variable": wanted})
    data = lightgbm.Dataset(X, CLASSES > 0)
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, data, 4)
    probability = booster.predict(ROWS)
    outputs = build_and_run(booster, {"features": ROWS}).outputs
    np.testing.assert_allclose(outputs["probabilities"][:, 1], probability, 1e-5, 1e-5)


def test_an_estimator_must_be_fitted() -> None:
    with pytest.raises(UserError, match="Ridge does not say how many features it takes"):
        export_source(Ridge())
