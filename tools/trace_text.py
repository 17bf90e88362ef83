"""Text, tools and arguments for generated conversations (`tools.traces`). Everything comes from the given `Random`.

The material is what agents send: prose, code, logs, listings, diffs, JSON; and what tokenizers find hard in it: runs of
digits and white space, mixed scripts, combining marks, emoji sequences, literals of the model's own added tokens.
"""

from __future__ import annotations

import json
import unicodedata
from random import Random
from typing import Any

PROSE = (
    "the a of to in that it for on with as this was at by an be from are or which when file test build error line "
    "function value return module import class object index token cache server request reply message session prefix "
    "encode decode buffer queue worker thread handler config option default header body stream chunk result because "
    "however should would cannot don't it's we'll they've I'd fails passes looks broken missing unexpected instead "
    "between before after without already again first second last small large slow fast wrong right equal different"
)
WORDS = PROSE.split()
NAME_PARTS = "user order cart item node tree path parser lexer merge rank piece rope splice store tenant probe"
NAMES = NAME_PARTS.split()
FOREIGN = (
    "我们需要在提交之前修复这个错误。测试在第12行失败，因为缓存没有更新。请检查配置文件，然后重新运行。",
    "このエラーは設定ファイルが見つからないときに発生します。ｶﾀｶﾅと全角１２３も試してください。",
    "이 함수는 빈 문자열을 반환합니다. 테스트를 다시 실행해 주세요. 한글 자모: ㄱㄴㄷ.",
    "Проверьте, пожалуйста, почему тест падает на второй строке; раньше всё работало. Ёлка, подъезд.",
    "يفشل الاختبار لأن الملف غير موجود. الرجاء التحقق من الإعدادات ١٢٣ ثم المحاولة مرة أخرى.",
    "यह परीक्षण विफल हो जाता है क्योंकि फ़ाइल नहीं मिली। कृपया क्षेत्र की जाँच करें।",
    "এই ফাইলটি খুঁজে পাওয়া যায় না। হয় ডাটা বদলান, নয় পথটি ঠিক করুন।",
    "การทดสอบล้มเหลวเพราะไม่พบไฟล์ กรุณาตรวจสอบการตั้งค่าแล้วลองอีกครั้ง",
    "Größe prüfen: Straße, Übergröße, naïve café, São Paulo, Łódź, İstanbul, ǆ, ﬁn, œuvre, ſ.",
    "הבדיקה נכשלת כי הקובץ לא נמצא. נסו שוב מחר.",
    "Ελέγξτε το αρχείο ρυθμίσεων· η δοκιμή απέτυχε ξανά.",
    "Tệp không tồn tại, vui lòng kiểm tra lại đường dẫn trước khi chạy thử nghiệm.",
    "👩‍💻 fixed it 🎉🎉 👍🏽 🇩🇪🇯🇵 👨‍👩‍👧‍👦 ❤️‍🔥 ✅ → ∑ ≤ ½ “quoted” — dash… ‘x’ №5",
    "├── src\n│   ├── main.py\n│   └── util.py\n└── tests\n┏━━━┓ ░▒▓ ▁▂▃▅▇ \u00a0\u2003\u200b\u2028\ufeff",
    unicodedata.normalize("NFD", "déjà vu, Ångström, Việt Nam, がぎぐ, 한국어 e\u0323\u0307 q\u0307\u0323"),
)
LITERALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
FRAGMENTS = ("<|im_", "start|>", "<think", "tool_call>", "<tool_response>\nok\n</tool_response>", "<|", "|>", "</")
SPACES = ("\n\n\n", "  \n", "\t\t", "\r\n", "      ", " \n \n", "\n\t\n")

# Arguments as a model may write them. Every one is a JSON object (or empty); engines parse it before they render.
ODD_ARGUMENTS = (
    '{ "path" : "a.py" ,"lines":[ 1,2 , 3 ] }',
    '\n{\n  "path": "src/ü.py",\n  "all": true\n}\n',
    '{"text":"\\u00e9\\ud83d\\ude00\\/\\b\\f\\n\\r\\t\\u0000\\u001f\\u007f\\u2028"}',
    '{"x":1.0,"y":1e3,"z":-0.0,"w":1E-7,"v":3.0e10,"u":0.1,"t":1e400,"s":123456789.123456789}',
    '{"n":12345678901234567890,"m":-1180591620717411303424,"zero":0,"neg":-0}',
    '{"description":"d","10":"ten","2":"two","command":"ls"}',
    '{"a":{"b":{"c":[{"d":[[],{},[{}]]},null,true,false]}}}',
    "{}",
    "",
    "{ }",
    '{"":"empty key"," ":"blank"}',
    '{"k":1,"k":2,"j":{"k":3,"k":[4]}}',
    '{"查询":"如何修复？","emoji":"👩‍💻","нфд":"e\u0301"}',
    '{"html":"<b class=\\"x\\">&amp; \'quoted\' </b>","re":"\\\\d+\\\\.\\\\w*"}',
    '{"command":"cat <<\'EOF\'\\nprint(\\"<|im_end|>\\")\\nEOF","timeout":5000.0}',
    '{"b":1,"a":2,"B":3,"A":4}',
    '{"v":NaN,"w":Infinity,"x":-Infinity}',
    '{"content":"line one\\n\\n\\n    line two\\t\\ttabs\\r\\n","mode":null}',
)


class Text:
    """Makes text of about a wanted length."""

    def __init__(self, rng: Random, non_ascii: bool = False, literals: bool = False) -> None:
        self.rng = rng
        self.non_ascii = non_ascii
        self.literals = literals

    def sentence(self) -> str:
        words = self.rng.choices(WORDS, k=self.rng.randint(4, 14))
        if self.rng.random() < 0.3:
            words.insert(self.rng.randrange(len(words)), f"`{self.name()}`")
        if self.rng.random() < 0.2:
            words.append(str(self.rng.randrange(10 ** self.rng.randint(1, 12))))
        return " ".join(words).capitalize() + self.rng.choice((".", ".", ".", "?", "!", ":", " ...", ".)"))

    def name(self) -> str:
        parts = self.rng.sample(NAMES, 2)
        return self.rng.choice(("_".join(parts), parts[0] + parts[1].title(), "-".join(parts), parts[0].upper()))

    def foreign(self) -> str:
        text = self.rng.choice(FOREIGN)
        if self.rng.random() < 0.5:
            start = self.rng.randrange(len(text))
            return text[start : start + self.rng.randint(1, 40)]
        return text

    def prose(self) -> str:
        return " ".join(self.sentence() for _ in range(self.rng.randint(1, 4)))

    def code(self) -> str:
        name, item, depth = self.name().replace("-", "_"), self.rng.choice(NAMES), self.rng.randint(1, 3)
        pad = self.rng.choice(("    ", "\t", "  ")) * depth
        number = self.rng.choice((0, 1, 3.14, 0xFF, 1000000, "1_000", "0x7fff", "1e-9"))
        return self.rng.choice(
            (
                f"def {name}(self, {item}: int = {number}) -> str:\n{pad}return f'{{{item}!r}}'\n\n",
                f"for ({item} of await {name}()) {{\n{pad}if (!{item}?.ok) continue; // {self.sentence()}\n}}\n",
                f"{pad}{item}[{number}] += {name}({item}, key=lambda x: -x[1])  # noqa\n",
                f'#include <{item}.h>\nint {name}(char *{item}) {{ return {item}[{number}] != "\\0"; }}\n',
            )
        )

    def log(self) -> str:
        rng = self.rng
        day, clock = (
            f"{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
        )
        level = rng.choice(("INFO", "WARN", "ERROR"))
        return f"2026-{day}T{clock}:07.{rng.randrange(10**6):06}Z {level} [{self.name()}] {rng.randrange(2**63)}\n"

    def diff(self) -> str:
        old, new = self.code().splitlines(), self.code().splitlines()
        at = self.rng.randrange(900)
        lines = [
            f"@@ -{at},{len(old)} +{at},{len(new)} @@",
            *("-" + line for line in old),
            *("+" + line for line in new),
        ]
        return "\n".join(lines) + "\n"

    def listing(self) -> str:
        rows = (f"-rw-r--r--  1 root root {self.rng.randrange(10**7):>9} {self.name()}.py" for _ in range(3))
        return "\n".join(rows) + "\n"

    def data(self) -> str:
        value = {self.name(): self.rng.choice((None, True, 1.5, [1, 2, {}], self.sentence())) for _ in range(3)}
        return json.dumps(value, indent=self.rng.choice((None, 2)), ensure_ascii=self.rng.random() < 0.5) + "\n"

    def piece(self) -> str:
        if self.non_ascii and self.rng.random() < 0.45:
            return self.foreign()
        if self.literals and self.rng.random() < 0.12:
            return self.rng.choice(LITERALS + FRAGMENTS)
        if self.rng.random() < 0.08:
            return self.rng.choice(SPACES)
        makers = (self.prose, self.prose, self.code, self.log, self.diff, self.listing, self.data)
        return self.rng.choice(makers)()

    def document(self, chars: int) -> str:
        """About `chars` characters (between half and twice, for 40 and more), mixed kinds."""
        pieces, size = [], 0
        while size < chars:
            piece = self.piece()[: 2 * chars]
            pieces.append(piece)
            size += len(piece)
        return self.rng.choice(("", " ", "\n")).join(pieces)


def tool(name: str, description: str | None, properties: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if properties is not None:
        function["parameters"] = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": function | more}


STRING: dict[str, Any] = {"type": "string"}
TOOLS = (
    tool(
        "bash",
        "Run a shell command.\nOutput is cut at 30,000 characters.",
        {"command": STRING, "timeout": {"type": "number"}},
    ),
    tool(
        "read",
        "Reads a file.",
        {"path": STRING, "offset": {"type": "integer", "minimum": 0}, "limit": {"type": "integer"}},
    ),
    tool("edit", 'Replaces "old" by <new>, & nothing else.', {"path": STRING, "old": STRING, "new": STRING}),
    tool("write", "Writes a file - überschreibt sie 写入文件.", {"path": STRING, "content": STRING}),
    tool("grep", "Searches.", {"pattern": STRING, "glob": {"type": ["string", "null"], "default": None}}),
    tool("list_files", None, {"path": STRING}),
    tool("now", "The time.", None),
    tool("ping", "No arguments.", {}),
    tool(
        "todo_write",
        "Plan.",
        {"items": {"type": "array", "items": {"type": "object", "properties": {"done": {"type": "boolean"}}}}},
    ),
    tool("web_fetch", "Fetches a page.", {"url": STRING | {"format": "uri"}}, strict=True),
    tool(
        "task",
        "Starts a helper.",
        {"kind": {"enum": ["plan", "build", "review"], "description": "Which one"}},
        strict=False,
    ),
    tool(
        "query",
        "SQL; e.g. `SELECT 'a''b' < 1.0`",
        {"sql": STRING, "limit": {"type": "integer", "default": 100, "maximum": 1e6}},
    ),
)


def arguments(rng: Random, text: Text, function: dict[str, Any]) -> dict[str, Any]:
    """A value for each property of a tool, mostly."""
    found: dict[str, Any] = {}
    for key, schema in function.get("parameters", {}).get("properties", {}).items():
        kind = schema.get("type", "string")
        if kind == "array":
            found[key] = [{"done": rng.random() < 0.5, "text": text.sentence()} for _ in range(rng.randint(0, 3))]
        elif kind in ("number", "integer"):
            found[key] = rng.choice((0, 1, 120, 5000, 2.5, 10 ** rng.randint(1, 15)))
        elif rng.random() < 0.9:
            found[key] = text.document(rng.choice((10, 30, 120)))
    return found
