# SPDX-License-Identifier: MIT
"""The chat template of GLM-5.2, as far as the pocket model is trained on it: messages in, prompt text out."""
import json

# The added tokens of GLM-5.2 in the order of their ids; True: special (never part of the text a user sees).
ADDED_TOKENS = [
    ("<|endoftext|>", True),
    ("[MASK]", True),
    ("[gMASK]", True),
    ("[sMASK]", True),
    ("<sop>", True),
    ("<eop>", True),
    ("<|system|>", True),
    ("<|user|>", True),
    ("<|assistant|>", True),
    ("<|observation|>", True),
    ("<|begin_of_image|>", True),
    ("<|end_of_image|>", True),
    ("<|begin_of_video|>", True),
    ("<|end_of_video|>", True),
    ("<|begin_of_audio|>", True),
    ("<|end_of_audio|>", True),
    ("<|begin_of_transcription|>", True),
    ("<|end_of_transcription|>", True),
    ("<|code_prefix|>", False),
    ("<|code_middle|>", False),
    ("<|code_suffix|>", False),
    ("<think>", False),
    ("</think>", False),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<tool_response>", False),
    ("</tool_response>", False),
    ("<arg_key>", False),
    ("</arg_key>", False),
    ("<arg_value>", False),
    ("</arg_value>", False),
    ("/nothink", False),
    ("<|begin_of_box|>", False),
    ("<|end_of_box|>", False),
    ("<|image|>", False),
    ("<|video|>", False),
]

TOOLS_HEAD = (
    "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)
TOOLS_TAIL = (
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"
)


def render(doc, prompt=False):
    """The text of a conversation: {"think": bool, "tools": [...]?, "messages": [...]}.

    prompt=False: a whole training document, closed by <|user|>; prompt=True: up to where the assistant begins.
    Reasoning of an answer is kept only after the last user message, as the released template does.
    """
    messages = doc["messages"]
    out = ["[gMASK]<sop>"]
    if doc["think"]:
        out.append("<|system|>Reasoning Effort: " + doc.get("effort", "Max"))
    if doc.get("tools"):
        functions = "".join(json.dumps(t["function"], ensure_ascii=False) + "\n" for t in doc["tools"])
        out.append("<|system|>" + TOOLS_HEAD + functions + TOOLS_TAIL)
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    for i, m in enumerate(messages):
        role, content = m["role"], m["content"]
        if role in ("system", "user"):
            out.append(f"<|{role}|>{content}")
        elif role == "tool":
            if i == 0 or messages[i - 1]["role"] != "tool":
                out.append("<|observation|>")
            out.append(f"<tool_response>{content}</tool_response>")
        else:
            keeps = doc["think"] and m.get("reasoning") and i > last_user
            out.append(f"<|assistant|><think>{m['reasoning'] if keeps else ''}</think>{content}")
            for call in m.get("tool_calls", []):
                out.append("<tool_call>" + call["name"])
                for key, value in call["arguments"].items():
                    out.append(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
                out.append("</tool_call>")
    if prompt:
        out.append("<|assistant|>" + ("<think>" if doc["think"] else "<think></think>"))
    else:
        out.append("<|user|>")
    return "".join(out)
