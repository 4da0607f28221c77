# SPDX-License-Identifier: MIT
"""8 clients of one server at a time: prints their answers, one line each, in the order of the
questions.

    ranks_clients.py URL
"""

import json
import sys
import threading
import urllib.request

QUESTIONS = ["Define river.", "Define stone.", "Define to sing.", "Define lamp.", "Define winter.",
             "Define to build.", "Define green.", "Define captain."]


def ask(url, i, answers):
    body = {"messages": [{"role": "user", "content": QUESTIONS[i]}], "temperature": 0,
            "max_tokens": 16, "reasoning_effort": "none"}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as r:
        answers[i] = json.load(r)["choices"][0]["message"]["content"]


def main():
    answers = [None] * len(QUESTIONS)
    threads = [threading.Thread(target=ask, args=(sys.argv[1], i, answers))
               for i in range(len(QUESTIONS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for a in answers:
        print(json.dumps(a))
    return 0 if all(answers) else 1


if __name__ == "__main__":
    sys.exit(main())
