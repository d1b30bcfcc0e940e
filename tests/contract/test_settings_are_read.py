"""Every field of a setting is read somewhere: an option that changes nothing does not exist."""

import ast
from collections import defaultdict
from pathlib import Path

import cadenza

SOURCE = Path(cadenza.__file__).parent
#: Accepted at their defaults only: the fingerprint of a published configuration holds them.
FINGERPRINT_ALONE = {"RolloutRecorderConfig", "ShapingConfig", "ExploratoryConfig"}
#: Says what a published condition means; the forces are computed under every one.
MEANING_ALONE = {"ConditionConfig.ft_synthesis_enabled"}
#: What a configuration is called here; records of results have other names.
SETTINGS = ("Config", "Cfg", "Settings", "Rules", "Options")


def test_every_field_of_a_setting_is_read_somewhere():
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))]
    fields = defaultdict(set)
    read = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef) and node.name.endswith(SETTINGS):
            fields[node.name] |= {
                part.target.id
                for part in node.body
                if isinstance(part, ast.AnnAssign)
                and isinstance(part.target, ast.Name)
                and not ast.unparse(part.annotation).startswith("ClassVar")
            }
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            read.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            read.add(node.value)  # by getattr, or as a keyword of its reader
    assert len(fields) > 50  # the walk found them
    unread = {
        f"{name}.{field}"
        for name in fields
        for field in fields[name] - read
        if name not in FINGERPRINT_ALONE
    }
    assert unread == MEANING_ALONE
