import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common import messages
from common.errors import MessageError
from common.identity import Identity, Occasion, Pins
from common.messages import (
    EvaluateReport,
    Introduction,
    LabelHistogram,
    NoisyHistogram,
    Order,
    PersonalReport,
    ProbeReport,
    ProbeRequest,
    ReleaseNote,
    RepresentationReport,
    TrainReport,
)
from common.two_party.messages import (
    CostCase,
    Product,
    TwoPartyCases,
    TwoPartyCosts,
    TwoPartyDeal,
    TwoPartyOffer,
    TwoPartyOrder,
    TwoPartyStep,
)

PRODUCTS = TwoPartyOrder("label-distances", 0, "products")
SIGNED = Identity.generate().sign("é", Occasion("two-party", 7, 0), [b"k" * 32])
RECORDS = [
    Introduction("site-00", 70, 18, 10, [1, 8, 8], ["label-histogram"], input_kind="images"),
    Introduction("site-00", 70, 18, 10, [4], []),
    LabelHistogram("site-00", [1, 0, 3]),
    Order(3, 1, 0),
    TrainReport("é", 3, 1, 0, 70, 0.25, 1.5),
    EvaluateReport("site-00", 3, 1, 0, 18, float("nan"), 0.5, [], 0.1),
    PersonalReport("site-00", 3, 1, 0, 18, 0.25, 0.5, [2.0, 4.0], 0.1, 0.75, 0.25, []),
    ProbeRequest(100),
    ProbeReport("site-00"),
    RepresentationReport("site-00", 1, 1, 0, [0, 2], [30, 41], 0.5),
    RepresentationReport("site-00", 1, 1, 0, [], [], 0.5),
    NoisyHistogram("site-00", [1.5, -0.25, 3.0]),
    ReleaseNote("noise", "rows", 1.0, 1e-5, 0.5, 2.0),
    ReleaseNote("masked"),
    PRODUCTS,
    TwoPartyOffer(
        "é", SIGNED.identity_key, SIGNED.keys[0], SIGNED.signature, 12, [0, 3], [1, 40], [0.5]
    ),
    TwoPartyDeal.of(PRODUCTS, [SIGNED], [Product("é", 3, 40, b"\x00" * 32, "")]),
    TwoPartyDeal.of(PRODUCTS, [], []),
    TwoPartyStep("é"),
    TwoPartyCases.of(PRODUCTS, [CostCase("a", "é", 3, 40, 41)]),
    TwoPartyCases.of(PRODUCTS, []),
    TwoPartyCosts("é", [0.25]),
]


def through_protobuf(content):
    return recorddict_from_proto(recorddict_to_proto(content))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_survive_real_serialisation(record):
    received = type(record).decode(through_protobuf(messages.content(record)))
    assert repr(received) == repr(record)  # repr because NaN differs from itself


@pytest.mark.parametrize(
    ("field", "value"),
    [("site", 3), ("num_examples", 1.0), ("num_examples", True), ("loss", 1), ("loss", "1.0")],
)
def test_wrong_type_is_refused_with_the_field(field, value):
    record = RECORDS[4].encode()
    record[field] = value
    with pytest.raises(MessageError, match=f"TrainReport.{field}"):
        TrainReport.decode(RecordDict({messages.RECORD: record}))


@pytest.mark.parametrize("column", ["peers", "numbers", "rows", "seeds", "thirds", "keys"])
def test_columns_of_unequal_length_are_refused(column):
    deal = next(record for record in RECORDS if isinstance(record, TwoPartyDeal))
    encoded = deal.encode()
    encoded[column] = [*encoded[column], *encoded[column]]
    with pytest.raises(MessageError, match="differ in length"):
        TwoPartyDeal.decode(RecordDict({messages.RECORD: encoded}))


def test_signed_keys_survive_real_serialisation():
    deal = next(record for record in RECORDS if isinstance(record, TwoPartyDeal))
    received = TwoPartyDeal.decode(through_protobuf(messages.content(deal)))
    Pins(allow_unpinned=True).check(received.signed["é"], "é", Occasion("two-party", 7, 0))
    assert received.products == deal.products


def test_missing_record_field_and_model_are_refused():
    with pytest.raises(MessageError, match="holds no TrainReport"):
        TrainReport.decode(RecordDict())
    with pytest.raises(MessageError, match=r"TrainReport\.site = None"):
        TrainReport.decode(RecordDict({messages.RECORD: ConfigRecord({"round": 1})}))
    with pytest.raises(MessageError, match="no model"):
        messages.arrays_of(RecordDict())


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.float16]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_arrays_are_flowers_own_format_and_come_back_bit_for_bit(value):
    record = messages.encode_arrays({"w": value})
    flowers = Array(value)
    assert record["w"].dtype == flowers.dtype
    assert record["w"].shape == flowers.shape
    np.testing.assert_array_equal(record["w"].numpy(), value)
    for received in (record, ArrayRecord({"w": flowers})):
        decoded = messages.decode_arrays(received)["w"]
        assert decoded.dtype == value.dtype
        assert decoded.tobytes() == value.tobytes()
        assert decoded.shape == value.shape


def test_fortran_order_arrives_in_c_order():
    value = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(
        messages.decode_arrays(messages.encode_arrays({"w": value}))["w"], value
    )


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2,), "torch", b"\x93NUMPY\x01\x00"),
        Array("float32", (2,), "numpy.ndarray", b"garbage"),
        Array("float32", (2,), "numpy.ndarray", Array(np.zeros(2)).data[:-1]),
        Array("object", (1,), "numpy.ndarray", Array(np.zeros(1)).data.replace(b"<f8", b"|O\x20")),
    ],
)
def test_damaged_array_is_refused_with_its_name(array):
    with pytest.raises(MessageError, match="array 'w'"):
        messages.decode_arrays(ArrayRecord({"w": array}))


@pytest.mark.parametrize("width", [10, 1000, 100_000])
def test_payload_bytes_are_those_of_protobuf(width):
    arrays = messages.encode_arrays({"weight": np.zeros(width, np.float32)})
    content = messages.content(RECORDS[4], arrays)
    real = recorddict_to_proto(content).ByteSize()
    assert abs(messages.payload_bytes(content) - real) < 400


def test_payload_bytes_of_many_texts_are_those_of_protobuf():
    content = RecordDict({"record": ConfigRecord({"names": [f"site-{k}" for k in range(1000)]})})
    real = recorddict_to_proto(content).ByteSize()
    assert abs(messages.payload_bytes(content) - real) < 100


def test_reply_carries_record_and_model(task_identity):
    message = Message(messages.content(Order(1, 1, 0)), 7, messages.TRAIN)
    reply = messages.reply(message, RECORDS[4], {"w": np.ones(3, np.float32)})
    assert TrainReport.decode(reply.content) == RECORDS[4]
    assert messages.decode_arrays(messages.arrays_of(reply.content))["w"].sum() == 3
