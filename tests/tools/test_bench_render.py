"""The render account: every engine has a row, with a number or with the reason for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from toktier.folding import Folded, FoldState, Rendered
from toktier.template import ChatTemplate, RenderRequest
from tools.bench import environments, records, render
from tools.bench.records import OURS
from tools.folding.corpus import corpus

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def by_engine(rows: list[render.Render]) -> dict[str, render.Render]:
    return {row.engine: row for row in rows}


def test_all_engines_and_a_file_of_rows(tmp_path: Path) -> None:
    rows = render.run([render.SHIPPED], 4, [("append", 10), ("user turn, 20 after", 40)], tmp_path, build=False)
    records.write(tmp_path / "rows.json", rows)
    assert records.read(tmp_path / "rows.json", render.Render) == rows
    for case in ("append", "user turn, 20 after"):
        own = by_engine([row for row in rows if row.case == case])
        assert set(own) == {*render.FULL, OURS}
        assert own["minijinja"].n == 0
        assert "not there" in own["minijinja"].note
        assert all(row.n >= 3 and row.p50_us > 0 for name, row in own.items() if name != "minijinja")
        assert 0 < own[OURS].iterations < own[OURS].messages
        assert own[OURS].note == ""
        assert own["jinja2"].served == own["jinja2"].scanned > 0
        assert 0 < own[OURS].scanned < own[OURS].served == own["jinja2"].served
    told = render.table(rows).splitlines()
    assert len(told) == 6
    assert told[-1].startswith("- minijinja, embedded: ")


def test_a_template_that_refuses_and_one_that_does_not_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = {
        "refuses": "{{ raise_exception('no tools') }}",
        "whole": "{{ messages | map(attribute='content') | join(' ') }}" * 2,
        "plain": PLAIN,
    }
    monkeypatch.setattr(render, "corpus", lambda _folders: templates)
    rows = render.run(list(templates), 3, [("append", 10)], tmp_path, build=False)
    refused = [row for row in rows if row.template == "refuses"]
    assert [(row.engine, row.n) for row in refused] == [(OURS, 0)]
    assert refused[0].note.startswith("the template refuses this session")
    assert by_engine([row for row in rows if row.template == "plain"])[OURS].n == 3
    assert "| refuses | append | 10 | - | - | - | - | - |" in render.table(rows)


def test_templates_of_a_folder_are_taken_by_name(tmp_path: Path) -> None:
    (tmp_path / "GLM-x.jinja").write_text(PLAIN, encoding="utf-8")
    rows = render.run(["GLM-x"], 3, [("append", 10)], tmp_path, build=False, folders=[tmp_path])
    assert {row.template for row in rows} == {"GLM-x"}
    assert by_engine(rows)[OURS].n == 3
    with pytest.raises(render.NotFound, match=r"no template a, b; there are: .*embedded"):
        render.run(["embedded", "a", "b"], 3, [("append", 10)], tmp_path, build=False)


def test_a_session_in_which_a_question_comes_was_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    renders: list[int] = []
    template = ChatTemplate({"default": PLAIN})
    folded = Folded.of(template)
    assert isinstance(folded, Folded)
    real = FoldState.render

    def counted(state: FoldState, request: RenderRequest, hint: int | None = None) -> Rendered:
        renders.append(len(request.messages))
        return real(state, request, hint)

    monkeypatch.setattr(FoldState, "render", counted)
    talk = render.Talk()
    times, *_ = render._incremental(folded, template, talk, talk.session(40, 20), "user turn, 20 after", 9)
    assert len(times) == 3
    assert renders == [*(40, 41) * 3, 41]


def test_templates_by_default_can_be_found() -> None:
    names = render.default_templates()
    assert names[0] == render.SHIPPED
    assert set(names) <= set(corpus())


def test_minijinja_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        environments.python_of("minijinja", build=False)
    except environments.CannotBuild:
        pytest.skip("its environment is not made: python -m tools.bench render")
    with render.Minijinja(build=False) as minijinja:
        minijinja.take(PLAIN)
        arguments = {"messages": [{"role": "user", "content": "é"}]}
        assert len(minijinja.render(arguments, 4, "user: é\n")[0]) == 4
        assert minijinja.render(arguments, 4, "user: e\n") == ([], -1, "another text")
        minijinja.take("{% for %}")
        assert "Error" in minijinja.render(arguments, 1, "")[2]


def test_limits_are_of_the_shipped_template() -> None:
    def row(template: str, case: str, messages: int, p50: float) -> render.Render:
        return render.Render("render", template, case, OURS, messages, 1, 1, 9, p50, p50, p50)

    rows = [
        row(render.SHIPPED, "append", 1_000, 290.0),
        row(render.SHIPPED, "append", 4_000, 450.0),
        row(render.SHIPPED, "append", 10, 9_000.0),
        row("other", "append", 1_000, 9_000.0),
    ]
    assert render.over_limit(rows) == ["append at 4,000 messages: 0.45 ms"]
