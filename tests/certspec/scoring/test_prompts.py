"""Prompt files: what is read, and that a bad line is named with its file and number."""

import os

import pytest

import certspec as cs
from certspec.scoring.prompts import PromptFile, read_prompts


def test_jsonl_gives_a_user_message_or_the_messages_as_they_are(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": "one", "id": 7}\n\n'
        '{"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "two"}]}\n'
    )
    first, second = read_prompts(path)
    assert first.messages == ({"role": "user", "content": "one"},) and (
        first.index,
        first.line,
    ) == (0, 1)
    assert [message["role"] for message in second.messages] == ["system", "user"]
    assert (second.index, second.line) == (1, 3)


def test_plain_text_is_one_prompt_a_line_even_if_it_looks_like_json(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b'\xef\xbb\xbfhello\r\n{"prompt": "no"}\n   \nlast')
    assert [prompt.messages[0]["content"] for prompt in read_prompts(path)] == [
        "hello",
        '{"prompt": "no"}',
        "last",
    ]


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (b"{oops", "expected a JSON object"),
        (b"[1]", "got list"),
        (b'{"text": "a"}', "'text'"),
        (b'{"prompt": "a", "messages": []}', "exactly one"),
        (b'{"prompt": " "}', "not blank"),
        (b'{"prompt": 3}', "got 3"),
        (b'{"messages": []}', "not empty"),
        (b'{"messages": [{"role": "user"}]}', "message 0"),
        (b'{"prompt": "\xff"}', "0xff"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(tmp_path, line, fact):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"prompt": "good"}\n' + line + b"\n")
    with pytest.raises(cs.UnreadableInput) as caught:
        PromptFile.check(path)
    assert f"{path}, line 2" in str(caught.value) and fact in str(caught.value)


def test_a_missing_file_and_an_empty_one_are_refused(tmp_path):
    with pytest.raises(cs.UnreadableInput, match="No such file"):
        PromptFile.check(tmp_path / "none.jsonl")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(cs.UnreadableInput, match="at least one prompt"):
        PromptFile.check(tmp_path / "empty.txt")
    with pytest.raises(cs.UnreadableInput, match="expected a file, got a directory"):
        PromptFile.check(tmp_path)
    with pytest.raises(cs.UnreadableInput, match="got a pipe or a device"):
        PromptFile.check(os.devnull)
