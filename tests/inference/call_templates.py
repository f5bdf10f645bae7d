"""Chat templates that write tool calls in the manners of the hub, with the tiny model's marks of turns.

Each keeps the peculiarity that its like is known for: a template with room for one call, ids of nine characters,
arguments that must be text or must be a mapping, content that must be empty, or null, or is dropped.
"""

from __future__ import annotations

from osmosis_ai.inference.catalog import FormatName

_FRAME = """\
{% if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}CALLS{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

_HERMES = """\
{{ m.content or '' }}{% for c in m.tool_calls %}{{ '\\n' if not loop.first }}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}"""

_QWEN3_CODER = """\
{{ m.content or '' }}{% for c in m.tool_calls %}{{ '\\n' if not loop.first }}<tool_call>
<function={{ c.function.name }}>
{% for key, value in c.function.arguments.items() %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}"""

_MISTRAL = """\
[TOOL_CALLS][{% for c in m.tool_calls %}\
{% if (c.id or '') | length != 9 %}{{ raise_exception('an id has nine characters') }}{% endif %}\
{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ ', ' if not loop.last }}{% endfor %}]"""

_MISTRAL_ARGS = """\
{{ m.content or '' }}{% for c in m.tool_calls %}{% set given = c["function"]["arguments"] %}\
[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ given if given is string else given | tojson }}{% endfor %}"""

_DEEPSEEK_V3 = """\
{% if m.content is none %}<｜tool▁calls▁begin｜>{% for c in m.tool_calls %}{{ '\\n' if not loop.first }}\
{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' + c.function.arguments }}
```<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% else %}{{ m.content + '' }}{% endif %}"""

_DEEPSEEK_V31 = """\
{{ m.content + '<｜tool▁calls▁begin｜>' }}{% for c in m.tool_calls %}\
{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>' }}\
{% endfor %}<｜tool▁calls▁end｜>"""

_LLAMA3_JSON = """\
{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}\
{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}"""

_PYTHONIC = """\
[{% for c in m.tool_calls %}{{ c.function.name }}({% for key, value in c.function.arguments.items() %}\
{{ key }}={{ value | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]\
{{ m.content or '' }}"""

UNKNOWN_CALLS = """\
{% for c in m.tool_calls %}<call>{{ c.function.name }}: {{ c.function.arguments | tojson }}</call>{% endfor %}"""


def template(calls: str) -> str:
    """A whole template, of which ``calls`` writes a turn with calls."""
    return _FRAME.replace("CALLS", calls)


TEMPLATES: dict[str, tuple[FormatName, str]] = {
    "hermes": ("hermes", template(_HERMES)),
    "qwen3_coder": ("qwen3_coder", template(_QWEN3_CODER)),
    "mistral": ("mistral", template(_MISTRAL)),
    "mistral_args": ("mistral", template(_MISTRAL_ARGS)),
    "deepseek_v3": ("deepseek", template(_DEEPSEEK_V3)),
    "deepseek_v31": ("deepseek", template(_DEEPSEEK_V31)),
    "llama3_json": ("llama3_json", template(_LLAMA3_JSON)),
    "pythonic": ("pythonic", template(_PYTHONIC)),
}
