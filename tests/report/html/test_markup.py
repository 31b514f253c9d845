"""Text stays text, whoever wrote it."""

import json
import re

from kmifqe.report.html.markup import Html, join, json_script, tag

HOSTILE = "</script><script>alert(1)</script><!--<b>&\"'\u2028"


def test_children_are_escaped_once_and_markup_is_not():
    assert tag("p", "a < b") == "<p>a &lt; b</p>"
    assert tag("p", tag("b", "a < b")) == "<p><b>a &lt; b</b></p>"
    assert join(None, "&", Html("&amp;"), ["<", 1]) == "&amp;&amp;&lt;1"


def test_attributes_are_escaped_and_named():
    assert (
        tag("a", class_='x"y', aria_label="<", hidden=True, id=None)
        == '<a class="x&quot;y" aria-label="&lt;" hidden></a>'
    )
    assert tag("br") == "<br>"


def test_hostile_text_leaves_no_tag():
    assert re.findall(r"<(/?\w+)", tag("p", HOSTILE, title=HOSTILE)) == ["p", "/p"]


def test_a_data_block_cannot_be_left_and_reads_back():
    script = json_script("numbers", {HOSTILE: [HOSTILE]})
    inside = re.fullmatch(r'<script type="application/json" id="numbers">(.*)</script>', script)
    assert inside is not None
    assert not set(inside.group(1)) & set("<>&\u2028")
    assert json.loads(inside.group(1)) == {HOSTILE: [HOSTILE]}
