"""Shadow workers against tiers of other kinds of tokenizer: what the tier repaired is what the files give."""

from __future__ import annotations

from pathlib import Path as File

import pytest

from tests.conftest import data_path
from tests.support import shadow
from tests.support.models import CACHE
from tests.support.rank_data import SIDECAR_FILES
from tests.support.shadow import Ends
from toktier.errors import Unrenderable
from toktier.reasons import Path
from toktier.shadow.pool import Pool
from toktier.tokenizer import FrozenTokenizer
from tools import traces

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}<|endoftext|>\n{% endfor %}"
    "{{ tools | tojson if tools else '' }}<|assistant|>"
)


@pytest.mark.parametrize(("name", "profile"), [("llama2", "vllm"), ("gpt2_tiktoken", "sglang")])
def test_conversations_are_equal_there(name: str, profile: str, tmp_path: File) -> None:
    """A prefix before the text, and special tokens around it; a rank file under SGLang's rules."""
    own = tmp_path / "own.jinja"
    own.write_text(TEMPLATE)
    sidecar = SIDECAR_FILES.get(name)
    tokenizer = FrozenTokenizer.load(data_path("tokenizers", name), sidecar=sidecar, cache_dir=CACHE, window=False)
    subject = shadow.subject(tokenizer, template=own, profile=profile, sidecar=sidecar, special=True)
    ends = Ends()
    pool = Pool(1, 1000, 256 << 20, 120.0, ends.on_result, ends.on_drop, ends.on_worker)
    jobs = []
    for number, conversation in enumerate(traces.generate(24, 5, long=0)):
        for step in conversation.steps:
            special = {"add_special_tokens": True} if profile == "vllm" and number % 2 else {}
            try:
                jobs.append(subject.job({**step.body, **special}, tenant=conversation.id))
            except Unrenderable:
                continue  # SGLang's profile takes fewer shapes
            pool.submit(jobs[-1])
    ends.wait(len(jobs))
    pool.close(30)
    assert not ends.drops
    assert [job for job, verdict, _ in ends.results if not verdict.equal] == []
    assert len(jobs) > 30
    assert {Path.INIT, Path.APPEND, Path.EDIT} <= {job.path for job in jobs}
