"""A cell under %%tcompile runs as it would without it."""

import pytest


def run(shell, cell):
    return shell.run_cell(cell, store_history=True)


def test_last_expression_is_the_result(shell):
    r = run(shell, "%%tcompile\nx = 20\nx + 1")
    assert r.success and r.result == 21 and shell.user_ns["Out"][1] == 21 and shell.user_ns["_"] == 21


@pytest.mark.parametrize("cell", ["x = 1\nx;", "x = 1\nx ; # a comment", "x = 1"])
def test_semicolon_and_statements_are_silent(shell, cell):
    r = run(shell, "%%tcompile\n" + cell)
    assert r.success and r.result is None and shell.user_ns["x"] == 1


def test_runs_once_in_the_users_namespace(shell):
    run(shell, "log = []")
    r = run(shell, "%%tcompile time=off\nlog.append(len(log))\ndef g():\n    return log\ng()")
    assert r.result == [0] and shell.user_ns["g"]() == [0]


def test_error_stops_and_traceback_shows_the_cells_own_lines(shell, capsys):
    r = run(shell, "%%tcompile\nx = 1\ny = 0\ndef f():\n    return x / y\nf()")
    out = capsys.readouterr().out
    assert not r.success and isinstance(r.error_in_exec, ZeroDivisionError)
    assert "line 6" in out and "line 5" in out and "----> 5     return x / y" in out
    assert "run_cell_magic" not in out and "session.py" not in out and "standin" not in out
    assert shell.user_ns["x"] == 1 and run(shell, "x").result == 1


def test_syntax_error_is_shown_once_and_stops(shell, capsys):
    r = run(shell, "%%tcompile\nx = 1\nfor in y:\n    pass\n")
    text = "".join(capsys.readouterr())
    assert not r.success and isinstance(r.error_before_exec, SyntaxError)
    assert "line 3" in text and "for in y" in text and text.count("SyntaxError") == 1 and "run_cell_magic" not in text
    assert "x" not in shell.user_ns


@pytest.mark.parametrize("option", ["mod=default", "--mode fastest", "backend=nope"])
def test_bad_option_is_a_usage_error_without_traceback(shell, capsys, option):
    r = run(shell, f"%%tcompile {option}\nran = True")
    text = "".join(capsys.readouterr())
    assert not r.success and "UsageError: tcompile: " in text and "Traceback" not in text and "ran" not in shell.user_ns


def test_top_level_await(shell, capsys):
    r = run(shell, "%%tcompile\nimport asyncio\nawait asyncio.sleep(0)\n6 * 7")
    assert r.success and r.result == 42
    r = run(shell, "%%tcompile\nawait asyncio.sleep(0)\n6 * 7;")
    assert r.success and r.result is None
    r = run(shell, "%%tcompile\nawait asyncio.sleep(0)\nboom")
    assert isinstance(r.error_in_exec, NameError)
    out = capsys.readouterr().out
    assert "line 3" in out and "session.py" not in out
    r = run(shell, "%%tcompile\nasync def g():\n    return 5\nasync with asyncio.Lock():\n    v = await g()\nv")
    assert r.result == 5


def test_magics_shell_commands_and_help_inside(shell, capfd):
    r = run(shell, '%%tcompile\n!echo "it\'s" here\nfiles = !echo one\n%time a = 3\na')
    assert (
        r.success
        and r.result == 3
        and list(shell.user_ns["files"]) == ["one"]
        and "it's here" in capfd.readouterr().out
    )


def test_keyboard_interrupt_and_system_exit(shell, capsys):
    r = run(shell, "%%tcompile\nbefore = 1\nraise KeyboardInterrupt\nafter = 1")
    assert (
        isinstance(r.error_in_exec, KeyboardInterrupt) and shell.user_ns["before"] == 1 and "after" not in shell.user_ns
    )
    r = run(shell, "%%tcompile\nimport sys\nsys.exit(3)")
    assert isinstance(r.error_in_exec, SystemExit)
    assert run(shell, "%%tcompile\n1").result == 1
    assert shell.tcompile.session.engine.active == 0


def test_future_flags_and_interactivity_settings(shell, capsys):
    assert run(
        shell, "%%tcompile\nfrom __future__ import annotations\ndef f(a: nowhere): pass\nf.__annotations__"
    ).result == {"a": "nowhere"}
    shell.ast_node_interactivity = "all"
    r = run(shell, "%%tcompile\n1\n2\n3")
    out = capsys.readouterr().out
    assert r.result == 3 and "1" in out and "2" in out
    shell.ast_node_interactivity = "last_expr_or_assign"
    assert run(shell, "%%tcompile\nz = 9").result == 9
    shell.ast_node_interactivity = "none"
    assert run(shell, "%%tcompile\n1").result is None
    shell.ast_node_interactivity = "last_expr"


def test_ast_transformers_apply(shell):
    import ast

    class Double(ast.NodeTransformer):
        def visit_Constant(self, node):
            return ast.copy_location(ast.Constant(node.value * 2), node) if isinstance(node.value, int) else node

    shell.ast_transformers.append(Double())
    try:
        assert run(shell, "%%tcompile\n21").result == 42
    finally:
        shell.ast_transformers.pop()


def test_braces_and_dollars_in_the_line_are_not_expanded(shell, capsys):
    shell.user_ns["secret"] = "mode"
    assert not run(shell, "%%tcompile {secret}=default\n1").success


def test_called_as_a_function(shell):
    assert shell.run_cell_magic("tcompile", "", "1 + 1\n") == 2
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("tcompile", "", "1 / 0\n")


def test_debugger_finds_the_cell_by_the_hash_of_what_was_typed(shell):
    cell = "%%tcompile\ndef g():\n    return 1\n"
    run(shell, cell)
    import inspect

    assert inspect.getsource(shell.user_ns["g"]) == "def g():\n    return 1\n"
    assert shell.user_ns["g"].__code__.co_firstlineno == 2
