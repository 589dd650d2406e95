"""Fields of users and steps: raw values to rows and back, between vocabularies, and in sessions."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mbcal.errors import InputError, OptionError
from mbcal.types import Behaviours, Catalog, Field, Fields, SessionFields, Sessions

DEVICE = Field("device", "category", ("phone", "tv"))
HOUR = Field("hour", "number", mean=12.0, deviation=4.0)
TEXT = Field("text", "vector", length=3)
FIELDS = Fields((HOUR, TEXT, DEVICE))


def sessions_with_fields() -> Sessions:
    """Two sessions, of three steps and one, of users known by their country."""
    catalog, behaviours = Catalog(("a", "b")), Behaviours(("skip", "click"), (0.0, 1.0))
    context = np.zeros((2, 3, FIELDS.width), np.float32)
    context[0, :] = [FIELDS.encode({"device": "tv", "hour": hour}, "context") for hour in (8, 12, 16)]
    context[1, 0] = FIELDS.encode({"text": [1, 2, 3]}, "context")
    return Sessions(
        catalog,
        behaviours,
        items=np.array([[2, 3, 2], [3, 0, 0]], np.int32),
        behaviours=np.array([[0, 1, 1], [1, 0, 0]], np.uint8),
        length=np.array([3, 1], np.int32),
        user=np.array([0, 1], np.int32),
        history_items=np.zeros((2, 1), np.int32),
        history_behaviours=np.zeros((2, 1), np.uint8),
        history_length=np.zeros(2, np.int32),
        user_features=np.array([[1], [0]], np.float32),
        context=context,
        fields=SessionFields(Fields((Field("country", "category", ("at", "de")),)), FIELDS),
    )


def test_values_become_a_row_with_categories_first() -> None:
    row = FIELDS.encode({"hour": 20, "device": "tv", "text": [0.5, -1, 2]}, "context")
    assert row.tolist() == [2, 2, 1, 0.5, -1, 2, 1]
    assert row.dtype == np.float32
    assert FIELDS.columns == {"device": slice(0, 1), "hour": slice(1, 3), "text": slice(3, 7)}


def test_missing_is_a_value_and_nothing_known_is_a_row_of_zeros() -> None:
    assert FIELDS.encode({"device": None, "hour": 12}, "context").tolist() == [0, 0, 1, 0, 0, 0, 0]
    assert FIELDS.encode({"device": "fridge"}, "context").tolist() == [0] * 7
    assert FIELDS.encode(None, "context").tolist() == FIELDS.encode({}, "context").tolist() == [0] * 7


def test_numbers_and_truth_values_name_categories_as_in_a_log() -> None:
    field = Fields((Field("code", "category", ("7", "true")),))
    assert [field.encode({"code": value}, "context")[0] for value in (7, 7.0, np.int64(7), "7", True)] == [1, 1, 1, 1, 2]


def test_far_numbers_are_clipped() -> None:
    assert FIELDS.encode({"hour": 1e30}, "context")[1] == 10


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hour": float("nan")}, "context: 'hour' must be finite, got nan"),
        ({"hour": float("inf")}, "context: 'hour' must be finite, got inf"),
        ({"hour": "20"}, "context: 'hour' takes numbers, got '20'"),
        ({"hour": True}, "context: 'hour' takes numbers, got True"),
        ({"text": [1, 2]}, "context: 'text' must have 3 numbers, got 2"),
        ({"text": [1, 2, float("nan")]}, "context: 'text' must be finite, got nan"),
        ({"text": "abc"}, "context: 'text' is a vector; give a list of 3 numbers, got 'abc'"),
        ({"device": 1.5}, "context: 'device' is a category; give text or a whole number, got 1.5"),
        ({"devise": "tv"}, "context: 'devise' was never declared; the model knows device, hour, text"),
    ],
)
def test_wrong_values_are_one_sentence(values, message) -> None:
    with pytest.raises(InputError) as error:
        FIELDS.encode(values, "context")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_wrong_declarations() -> None:
    with pytest.raises(OptionError, match="kind 'text' of 'x' is unknown; known are category, number, vector"):
        Field("x", "text")
    with pytest.raises(OptionError, match="a vector has 1 to 4096 numbers"):
        Field("x", "vector")
    with pytest.raises(OptionError, match="two are called 'device'"):
        Fields((DEVICE, Field("device", "number")))
    with pytest.raises(OptionError, match="context: no 'colour'; the data has device, hour, text"):
        FIELDS.select(("colour",), "context")


def test_the_order_of_declaration_does_not_matter() -> None:
    values = {"hour": 20, "device": "tv", "text": [0.5, -1, 2]}
    for order in itertools.permutations((DEVICE, HOUR, TEXT)):
        assert Fields(order) == FIELDS
        assert Fields(order).encode(dict(reversed(values.items())), "c").tolist() == FIELDS.encode(values, "c").tolist()


def test_fields_survive_json() -> None:
    fields = SessionFields(Fields((HOUR,)), FIELDS)
    assert SessionFields.from_record(json.loads(json.dumps(fields.record()))) == fields
    assert SessionFields.from_record(None) == SessionFields()


@pytest.mark.parametrize(
    "forged",
    [
        [{"name": "device", "kind": "category", "vocabulary": "tv"}],
        [{"name": "device", "kind": "colour"}],
        [{"kind": "number"}],
        [{"name": "device", "kind": "number", "unheard": 1}],
        ["device"],
        7,
    ],
)
def test_a_forged_record_is_refused(forged) -> None:
    with pytest.raises(InputError, match="their record cannot be read"):
        SessionFields.from_record({"user": forged, "context": []})
    with pytest.raises(InputError, match="must name those of users and of steps"):
        SessionFields.from_record({"user": []})


@given(st.sampled_from(["phone", "tv", "fridge", None]), st.floats(-30, 30) | st.none(), st.booleans())
def test_other_statistics_and_vocabularies_give_what_they_would_have_encoded(device, hour, as_tensor) -> None:
    other = Fields((Field("device", "category", ("radio", "tv")), Field("hour", "number", mean=10.0, deviation=3.0)))
    values = {"device": device, "hour": hour}
    row = FIELDS.encode(values, "context")
    recoded = other.recode(torch.from_numpy(row) if as_tensor else row, FIELDS)
    assert isinstance(recoded, torch.Tensor) == as_tensor
    np.testing.assert_allclose(np.asarray(recoded), other.encode(values, "context"), atol=1e-5)


def test_sessions_keep_fields_through_slices_joins_and_tensors() -> None:
    sessions = sessions_with_fields()
    joined = Sessions.concat([sessions[1:], sessions[:1]])
    assert joined.context.tolist() == sessions.context[::-1].tolist()
    assert joined.fields is sessions.fields
    tensors = sessions.tensors()
    assert tensors.to("cpu").sessions().user_features.tolist() == [[1], [0]]
    assert tensors[1:].context.shape == (1, 3, 7)
    assert sessions.like(dict(sessions.arrays())).fields == sessions.fields
    # beyond the end of a session its last context
    assert tensors.context_at(2)[1].tolist() == sessions.context[1, 0].tolist()
    assert tensors.context_at(1)[0].tolist() == sessions.context[0, 1].tolist()
    assert tensors.without("context").context_at(0) is None


def test_sessions_are_encoded_by_the_fields_of_a_model() -> None:
    sessions = sessions_with_fields()
    fields = SessionFields(Fields(), Fields((Field("device", "category", ("tv",)), Field("age", "number"))))
    for encoded in (sessions.encoded_by(fields), sessions.tensors().encoded_by(fields).sessions()):
        assert encoded.user_features is None
        assert encoded.context[0].tolist() == [[1, 0, 0]] * 3
        assert not encoded.context[1].any()
    assert sessions.encoded_by(sessions.fields) is sessions
    plain = dataclasses.replace(sessions, context=None, user_features=None, fields=SessionFields())
    assert plain.encoded_by(fields).context.shape == (2, 3, 3)


def test_sessions_refuse_rows_that_do_not_fit_their_fields() -> None:
    sessions = sessions_with_fields()
    context = sessions.context.copy()
    context[1, 2, 0] = 1
    for change, message in (
        ({"context": context}, "context must be 0 after the end of a row"),
        ({"context": sessions.context[:, :, :4]}, "context has 4 columns, its fields take 7"),
        ({"context": sessions.context + np.float32(np.nan)}, "context must hold finite numbers"),
        ({"context": None}, "context and its fields belong together"),
        ({"user_features": np.full((2, 1), 3, np.float32)}, "user_features has codes of 'country' outside 0..2"),
    ):
        with pytest.raises(InputError, match=message):
            dataclasses.replace(sessions, **change)
    other = Fields((dataclasses.replace(DEVICE, vocabulary=("tv", "phone")), HOUR, TEXT))
    other_sessions = dataclasses.replace(sessions, fields=SessionFields(sessions.fields.user, other))
    with pytest.raises(InputError, match="encoded alike"):
        Sessions.concat([sessions, other_sessions])
