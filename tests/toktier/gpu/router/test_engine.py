"""The GPU path from chunks to IDs, with the device core in the place of a GPU, beside the reference."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.support.gpu import classes_of, files_of, host_core, literals, reference, tables
from tests.support.host_gpu import HostGpu, host_gpu, qwen3_files
from tests.support.models import qwen3
from tests.support.tokenizer_files import CACHE
from tests.support.tokenizers_data import each
from toktier.campaign.corpus import PROSE
from toktier.campaign.edits import Account, run_rope
from toktier.campaign.subject import subject_of
from toktier.certificate.samples import TextSource
from toktier.chunks import ChunkEncoder
from toktier.gpu.graph import DriverError
from toktier.gpu.launcher import KernelFault
from toktier.gpu.router import engine as module
from toktier.gpu.router.devices import Failed
from toktier.gpu.router.engine import Trial
from toktier.gpu.router.pace import EVERY, Pace
from toktier.gpu.router.segments import segmenter_of
from toktier.ids import EMPTY, Ids
from toktier.reasons import FullEncode, Gpu
from toktier.reference_of import ranks_in, spec_of
from toktier.rope import Rope
from toktier.tokenizer import FrozenTokenizer
from tools.kernels.faults import hangs, raises, wrong
from tools.kernels.host import HostDevice

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
    pytest.mark.xdist_group("qwen3"),
]


def of(gpu: HostGpu) -> tuple[FrozenTokenizer, ChunkEncoder]:
    return qwen3(), gpu.encoder(qwen3(), qwen3_files())


@pytest.fixture(scope="module")
def gpu() -> Iterator[HostGpu]:
    with host_gpu() as it:
        yield it


def source_of(tokenizer: FrozenTokenizer, seed: str) -> TextSource:
    assert tokenizer.certificate is not None
    literals = [token["content"] for token in tokenizer.spec["added_tokens"]]
    return TextSource(tokenizer.certificate.table.classes, literals, seed=seed)


def test_chunks_have_the_references_ids_and_counts(gpu: HostGpu) -> None:
    tokenizer, encoder = of(gpu)
    assert encoder.gpu is not None
    source = source_of(tokenizer, "engine")
    for _ in range(25):
        texts = [source.text(source.rng.choice((1, 4, 20, 60))) for _ in range(source.rng.choice((1, 2, 9)))]
        made = encoder.gpu.encode(texts)
        ids, counts = tokenizer.reference.encode_batch(texts)
        assert isinstance(made, tuple), made
        assert made[0].tolist() == ids.tolist(), texts
        assert list(made[1]) == counts.tolist()


@pytest.mark.parametrize("name", each(["deepseek_v4", "gpt2_tiktoken"]))
def test_segments_of_other_families(name: str) -> None:
    read, known = files_of(name), reference(name)
    spec = ranks_in(read).spec if read.sidecar is not None else spec_of(read)
    made = segmenter_of(spec, known, CACHE)
    device = HostDevice(host_core(), "tiny").encoder(tables(name), 1 << 20)
    source = TextSource(classes_of(tables(name)), literals(name), seed=name)
    found = 0
    for _ in range(25):
        texts = [source.text(source.rng.choice((1, 4, 20, 60))) for _ in range(source.rng.choice((1, 2, 9)))]
        segments = made.segments(texts)
        ids, counts = segments.assembled(device.encode_view(segments.buffer.tobytes()))
        want, sizes = known.encode_batch(texts)
        assert (ids.tolist(), counts) == (want.tolist(), sizes.tolist()), texts
        found += int((segments.marks.ids >= 0).sum())
    assert found > 100


def test_a_rope_over_it_holds_the_references_ids(gpu: HostGpu) -> None:
    tokenizer, encoder = of(gpu)
    source = source_of(tokenizer, "rope")
    rope, text, used = Rope(encoder), "", 0
    for step in range(20):
        text = text + source.text(40) if step % 3 else PROSE[: 900 * step + 90] + text[len(text) // 2 :]
        splice = rope.set(text)
        used += splice.gpu is Gpu.USED
        assert rope.ids.tolist() == tokenizer.reference.encode(text).tolist()
        assert rope.by_gpu
    assert used > 15
    assert rope.clone().by_gpu


def test_a_text_without_cuts_goes_to_the_device_too(gpu: HostGpu) -> None:
    tokenizer, encoder = of(gpu)
    text = "ab" * 50_000
    rope = Rope(encoder)
    splice = rope.set(text)
    assert (splice.gpu, splice.full, rope.seams()) == (Gpu.USED, FullEncode.NO_SESSION, [])
    assert rope.ids.tolist() == tokenizer.reference.encode(text).tolist()


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (KernelFault("a piece was not encoded"), Gpu.KERNEL_FAULT),
        (DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY"), Gpu.OUT_OF_MEMORY),
        (DriverError("cuGraphLaunch", "CUDA_ERROR_LAUNCH_FAILED"), Gpu.DEVICE_LOST),
        (MemoryError(), Gpu.OUT_OF_MEMORY),
        (KeyError("x"), Gpu.INTERNAL_ERROR),
    ],
)
def test_whatever_fails_the_cpu_answers_with_a_reason(gpu: HostGpu, error: Exception, want: Gpu) -> None:
    tokenizer, encoder = of(gpu)
    gpu.script.calls.append(raises(error))
    rope = Rope(encoder)
    before = gpu.engines.router.outcomes[want]
    splice = rope.set(PROSE)
    assert splice.gpu is want
    assert not rope.by_gpu
    assert rope.ids.tolist() == tokenizer.reference.encode(PROSE).tolist()
    assert gpu.engines.router.outcomes[want] == before + 1
    gpu.engine(tokenizer, qwen3_files())  # ready again


def test_a_device_that_hangs_costs_no_request() -> None:
    go = threading.Event()
    with host_gpu(timeout_s=0.3) as gpu:
        tokenizer, encoder = of(gpu)
        gpu.script.calls.append(hangs(go))
        with ThreadPoolExecutor(4) as pool:
            ropes = [Rope(encoder) for _ in range(4)]
            told = [future.result() for future in [pool.submit(rope.set, PROSE) for rope in ropes]]
        want = tokenizer.reference.encode(PROSE).tolist()
        assert all(rope.ids.tolist() == want for rope in ropes)
        assert {one.gpu for one in told} <= {Gpu.TIMEOUT, Gpu.PAUSED, Gpu.BUSY}
        assert Gpu.TIMEOUT in {one.gpu for one in told}
        go.set()


def test_small_texts_quarantine_and_lone_surrogates_are_for_the_cpu(gpu: HostGpu) -> None:
    tokenizer, encoder = of(gpu)
    engine = gpu.engine(tokenizer, qwen3_files())
    engine.shared.from_chars = 11
    try:
        assert engine.encode(["12345", "12345"]) is Gpu.SMALL
        assert isinstance(engine.encode(["12345", "123456"]), tuple)
    finally:
        engine.shared.from_chars = 1
    gpu.allowed = False
    try:
        assert engine.encode(["text"]) is engine.standing is Gpu.QUARANTINED
    finally:
        gpu.allowed = True
    with pytest.raises(UnicodeEncodeError):
        engine.encode(["a\ud800"])
    rope = Rope(encoder)
    rope.set("text")
    with pytest.raises(Exception, match="lone surrogate at character 5"):
        rope.set("text \ud800")
    assert rope.text() == "text"


def test_many_threads_share_launches_and_get_their_own_ids(gpu: HostGpu) -> None:
    tokenizer, encoder = of(gpu)
    assert encoder.gpu is not None
    source = source_of(tokenizer, "threads")
    texts = [source.text(30) for _ in range(40)]
    go = threading.Event()
    gpu.script.calls.append(hangs(go))
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(encoder.gpu.encode, [text]) for text in texts]
        go.set()
        for text, future in zip(texts, asked, strict=True):
            made = future.result()
            assert isinstance(made, tuple)
            assert made[0].tolist() == tokenizer.reference.encode(text).tolist()


def test_the_check_at_the_start_notices_wrong_ids_and_the_device_is_not_used() -> None:
    tokenizer = qwen3()
    with host_gpu() as gpu:
        gpu.script.calls += [lambda call: call(), wrong]
        engine = gpu.engines.engine(tokenizer, qwen3_files(), lambda: True, CACHE)
        with pytest.raises(AssertionError, match="self_check"):
            gpu.engine(tokenizer, qwen3_files())
        assert engine.encode([PROSE]) is Gpu.SELF_CHECK


def test_the_crossover_is_where_the_device_becomes_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = qwen3()
    trial = Trial.of(tokenizer, segmenter_of(tokenizer.spec, tokenizer.reference, CACHE))
    assert len(trial.texts) > 200
    monkeypatch.setattr(module, "SIZES", (1 << 10, 1 << 11, 1 << 12, 1 << 13))
    times: list[list[int]] = []
    monkeypatch.setattr(module, "_time", lambda *_: times.pop())

    monkeypatch.setattr(Trial, "_device", lambda *_: None)

    def encode(_text: bytes) -> Ids:
        return EMPTY

    # device, then CPU, of the largest size first
    times[:] = reversed([[1], [9, 3], [5, 7], [4]])
    assert trial.from_chars(encode) == 1 << 13
    times[:] = reversed([[1], [3]] * 4)
    assert trial.from_chars(encode) == 1 << 10
    times[:] = reversed([[2], [2]])
    with pytest.raises(Failed, match="slower"):
        trial.from_chars(encode)


def test_a_device_that_is_slower_than_the_cpu_gets_few_texts(gpu: HostGpu) -> None:
    tokenizer, encoder = of(gpu)
    shared = gpu.engine(tokenizer, qwen3_files()).shared
    shared.pace = Pace()
    shared.pace.took(True, 1, 1 << 40)
    try:
        told = []
        for _ in range(3 * EVERY):
            made = encoder.encode([PROSE])
            assert made.ids.tolist() == tokenizer.reference.encode(PROSE).tolist()
            told.append(made.gpu)
        assert told[: EVERY - 1] == [Gpu.USED] * (EVERY - 1)  # what the CPU takes is not known yet
        assert told[EVERY - 1] is Gpu.SLOWER
        assert told[EVERY:].count(Gpu.USED) == 2
    finally:
        shared.pace = None


def test_a_tokenizer_that_has_no_tables_is_refused_by_name() -> None:
    tokenizer = qwen3()
    broken = replace(qwen3_files(), tokenizer=b'{"model": {"type": "WordPiece"}}')
    with host_gpu() as gpu:
        engine = gpu.engines.engine(tokenizer, broken, lambda: True, None)
        with pytest.raises(AssertionError, match="refused"):
            gpu.engine(tokenizer, broken)
        assert engine.encode([PROSE]) is Gpu.REFUSED


def test_threads_that_must_not_wait_get_the_cpu(gpu: HostGpu) -> None:
    _, encoder = of(gpu)
    told: list[object] = []

    def here() -> None:
        gpu.engines.router.spare(threading.get_ident())
        told.append(encoder.encode([PROSE]).gpu)

    thread = threading.Thread(target=here)
    thread.start()
    thread.join()
    gpu.engines.router._spared.clear()
    assert told == [Gpu.AT_ONCE]


def test_random_edits_of_a_conversation(gpu: HostGpu) -> None:
    tokenizer, encoder = of(gpu)
    rng = random.Random(11)
    rope, text = Rope(encoder), ""
    for _ in range(12):
        at = rng.randrange(len(text) + 1)
        new = f"<|im_start|>user\n{PROSE[: rng.randrange(800)]}<|im_end|>\n"
        text = text[:at] + new + text[at + rng.randrange(90) :]
        rope.set(text)
    assert rope.ids.tolist() == tokenizer.reference.encode(text).tolist()


def test_a_campaign_of_ropes_on_the_device_is_equal_and_finds_a_wrong_one(gpu: HostGpu) -> None:
    tokenizer = qwen3()
    subject = subject_of(tokenizer, [PROSE], gpu.engine(tokenizer, qwen3_files()))
    account = Account()
    for case in range(3):
        assert run_rope(subject, case, random.Random(case), account) is None
    assert account.gpu[Gpu.USED.value] >= 0.9 * account.operations > 20
    gpu.script.calls.append(wrong)
    bad = run_rope(subject, 0, random.Random(0), account)
    assert bad is not None
    assert bad.fault == "ids"
