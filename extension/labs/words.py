"""The course's own words, in English and Chinese."""

from __future__ import annotations

import contextvars
import os
from typing import Any

__all__ = ["LANGUAGES", "language", "say", "speak"]

LANGUAGES = ("en", "zh")
_language: contextvars.ContextVar[str] = contextvars.ContextVar("tcompile_lab_language", default="")

WORDS: dict[str, tuple[str, str]] = {
    "missing": (
        "there is no `{name}`: its cell is missing, or was not run, or failed.",
        "没有找到 `{name}`：对应的单元格不存在、没有运行，或运行出错。",
    ),
    "look": ("Where to look:", "看这里："),
    "type": (
        "`{what}` should be of type {want}; yours is of type {got}: {value}",
        "`{what}` 应当是 {want} 类型，你的答案是 {got} 类型：{value}",
    ),
    "same": ("`{what}` should be {want}; yours is {got}.", "`{what}` 应当是 {want}，你的答案是 {got}。"),
    "first": (
        "The first difference is at {where}: expected {want}, got {got}.",
        "第一处不同在 {where}：应为 {want}，得到 {got}。",
    ),
    "length": ("It has {got} elements; expected {want}.", "它有 {got} 个元素，应有 {want} 个。"),
    "no_key": ("The key {key} is missing.", "缺少键 {key}。"),
    "extra_key": ("The key {key} should not be there.", "不应有键 {key}。"),
    "tensor": (
        "`{what}` differs in {n} of {of} elements. The first is {place}: expected {want}, got {got}.",
        "`{what}` 的 {of} 个元素中有 {n} 个不同。第一个在 {place}：应为 {want}，得到 {got}。",
    ),
    "at_most": ("`{what}` should be at most {limit}; yours is {got}.", "`{what}` 最多应为 {limit}，你的答案是 {got}。"),
    "at_least": (
        "`{what}` should be at least {limit}; yours is {got}.",
        "`{what}` 至少应为 {limit}，你的答案是 {got}。",
    ),
    "holds": ("This should hold, and does not: {what}", "下面的条件应当成立，但没有成立：{what}"),
    "raises": ("`{what}` should raise {error}; it gave {got}.", "`{what}` 应当抛出 {error}，却返回了 {got}。"),
    "stage": (
        "The report should name `{want}` as the function that ran for the stage {stage}; it names {got}.",
        "报告中执行 {stage} 阶段的函数应当是 `{want}`，实际是 {got}。",
    ),
    "declined": (
        "`{name}` declined {declined} of {count} inputs of the stage {stage}, so that the compiler's own did the work.",
        "`{name}` 在 {stage} 阶段的 {count} 个输入中拒绝了 {declined} 个，实际工作由编译器自己完成。",
    ),
    "unsolved": ("not solved yet.", "尚未完成。"),
    "unsolved_above": (
        "This cell needs an exercise above it that is not solved yet.",
        "这个单元格需要前面尚未完成的练习。",
    ),
    "raised": ("it raised {error}", "运行时抛出 {error}"),
    "raised_at": (
        "your code raised {error}\n  in `{function}`, line {line}: {code}",
        "你的代码抛出 {error}\n  位于 `{function}` 第 {line} 行：{code}",
    ),
    "time": (
        "it used more than {seconds:g} s of processor time. Does a loop never end?",
        "用时超过 {seconds:g} 秒处理器时间。是否有循环不会结束？",
    ),
    "waited": ("it did not end within {seconds:g} s.", "在 {seconds:g} 秒内没有结束。"),
    "printed": (
        "it printed more than {limit} characters. Does a loop never end?",
        "输出超过 {limit} 个字符。是否有循环不会结束？",
    ),
    "wrote": ("it wrote more than {limit} MB to one file.", "写入单个文件的内容超过 {limit} MB。"),
    "memory": ("it used more memory than the {limit} MB allowed.", "使用的内存超过允许的 {limit} MB。"),
    "processes": ("it started more than {limit} processes.", "启动的进程超过 {limit} 个。"),
    "disk": ("it wrote more than {limit} MB of files.", "写出的文件超过 {limit} MB。"),
    "crashed": ("the process ended: {reason}.", "进程已终止：{reason}。"),
    "exited": ("it called exit ({code}).", "它调用了 exit（{code}）。"),
    "cell": ("the cell `{name}` failed: {error}", "单元格 `{name}` 运行失败：{error}"),
    "solved": ("solved", "已完成"),
    "partly": ("partly", "部分完成"),
    "open": ("open", "未完成"),
    "points": ("{points:g} of {of:g} points", "{points:g} / {of:g} 分"),
    "exercise": ("exercise", "练习"),
    "no_hidden": (
        "only public tests: the hidden ones come with the instructor's package",
        "只运行了公开测试：隐藏测试在教师包里",
    ),
    "started": ("{file} is yours. Open it:  jupyter lab {file}", "{file} 已建好。打开它：jupyter lab {file}"),
    "exists": (
        "{file} is there already, and stays as it is. Move it away, or give another folder with --into.",
        "{file} 已经存在，不会改动。请先移走它，或用 --into 指定另一个文件夹。",
    ),
    "no_lab": ("there is no lab {number}; labs are {labs}.", "没有实验 {number}；现有实验：{labs}。"),
    "no_file": (
        "{file} is not there. Begin with:  tcompile lab start {number}",
        "找不到 {file}。先运行：tcompile lab start {number}",
    ),
    "no_folder": (
        "{folder} is not there. Give the folder that the submissions are in, or one notebook.",
        "找不到 {folder}。请给出存放提交的文件夹，或一个笔记本。",
    ),
    "no_notebooks": (
        "{folder} has no notebook (*.ipynb), in no folder below it either.",
        "{folder} 及其子文件夹里没有笔记本（*.ipynb）。",
    ),
    "no_exercise": (
        "lab {lab} has no exercise {name!r}; exercises are {names}.",
        "实验 {lab} 没有练习 {name!r}；现有练习：{names}。",
    ),
    "not_written": ("{file} can't be written: {reason}.", "无法写入 {file}：{reason}。"),
    "no_instructor": (
        "solutions and hidden tests are in the instructor's package alone, which is not installed here.",
        "答案和隐藏测试只在教师包里，这里没有安装。",
    ),
    "not_a_lab": ("{file} is not a notebook of a lab: {reason}", "{file} 不是实验笔记本：{reason}"),
    "best": ("your best", "你的最好成绩"),
    "now": ("now", "现在"),
    "one_kernel": ("1 kernel, {bytes} bytes", "1 个内核，{bytes} 字节"),
    "kernels": ("{n} kernels, {bytes} bytes", "{n} 个内核，{bytes} 字节"),
    "moves": ("{name}: {bytes} bytes", "{name}：{bytes} 字节"),
    "kernel_row": ("{bytes} bytes: {operators}", "{bytes} 字节：{operators}"),
    "stage_ran": ("ran: {n} · declined: {declined}", "运行 {n} 次 · 拒绝 {declined} 次"),
    "no_gpu": (
        "There is no GPU here. What you wrote ran in Triton's interpreter.",
        "这里没有 GPU。你写的内核是在 Triton 的解释器里运行的。",
    ),
    "on_gpu": ("On {device}, the largest difference from torch:", "在 {device} 上，与 torch 的最大差别："),
    "compiled": ("compiled", "编译"),
    "served": ("served", "命中"),
    "compilations": ("compilations: {n} (calls {calls})", "编译 {n} 次（调用 {calls}）"),
    "minutes": ("{minutes} minutes", "{minutes} 分钟"),
    "puzzle_solved": ("Solved.", "完成了。"),
    "puzzle_read": (
        "{name}: {n} reads · {again} too often · {outside} out of bounds · {never} never",
        "{name}：读取 {n} 次 · 过多 {again} · 越界 {outside} · 未读 {never}",
    ),
    "puzzle_written": (
        "{name}: {n} writes · {again} twice · {outside} out of bounds · {never} never",
        "{name}：写入 {n} 次 · 重复 {again} · 越界 {outside} · 未写 {never}",
    ),
    "puzzle_reads": ("read", "读取"),
    "puzzle_writes": ("written", "写入"),
    "puzzle_outside": (
        "{name}{at} is {do} by program {program}: that is outside of {name}.",
        "程序 {program} {do}了 {name}{at}：它在 {name} 之外。",
    ),
    "puzzle_never": (
        "{name}{at} is never written (never written in all: {n}).",
        "{name}{at} 从未写入（共 {n} 个元素）。",
    ),
    "puzzle_wrong": (
        "{name}{at} should be {want}; it is {got} (elements that differ: {n}).",
        "{name}{at} 应为 {want}，实际是 {got}（{n} 个元素不同）。",
    ),
    "puzzle_again": (
        "{name}{at} is {do} {n} times; {most} is enough.",
        "{name}{at} 被{do} {n} 次，{most} 次就够了。",
    ),
    "puzzle_too_much": (
        "it read and wrote more than {limit} elements. Does a loop never end?",
        "读写的元素超过 {limit} 个。是否有循环不会结束？",
    ),
    "puzzle_no_loop": (
        "{name} is read by places: {name}[i], or {name}[i, j]",
        "{name} 要按位置读取：{name}[i] 或 {name}[i, j]",
    ),
    "puzzle_dimensions": (
        "{name} has {want} dimensions; the index was {got}",
        "{name} 有 {want} 个维度，给出的下标是 {got}",
    ),
    "puzzle_index": (
        "{name} takes whole numbers as an index, got {got}",
        "{name} 的下标应为整数，得到 {got}",
    ),
    "puzzle_programs": ("programs", "程序"),
    "puzzle_program": ("program", "程序"),
    "puzzle_all": ("all", "全部"),
    "puzzle_choose": ("Number of the program to show; -1 is all", "要显示的程序编号；-1 表示全部"),
    "puzzle_previous": ("Previous program", "上一个程序"),
    "puzzle_next": ("Next program", "下一个程序"),
    "puzzle_code": ("Your program; the picture follows as you type", "你的程序；图随输入而变"),
    "puzzle_keep": (
        "What you type here is tried at once. Copy it into the cell above to keep it.",
        "这里输入的内容会立即试运行。要保留它，请复制到上面的单元格。",
    ),
    "puzzle_back": ("Back to the cell's code", "恢复单元格的代码"),
    "puzzle_printed": ("printed:", "输出："),
    "puzzle_no_function": ("the text should define `{name}`", "这里应当定义 `{name}`"),
    "line": ("line {line}", "第 {line} 行"),
    "wanted": ("wanted {value}", "应为 {value}"),
}


def speak(name: str) -> None:
    """The language of what follows, for this context."""
    _language.set(name if name in LANGUAGES else "en")


def language() -> str:
    """The language chosen, else that of the environment."""
    chosen = _language.get() or os.environ.get("TCOMPILE_LAB_LANGUAGE", "")
    if chosen in LANGUAGES:
        return chosen
    place = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return "zh" if place.startswith("zh") else "en"


def say(text: str, /, **facts: Any) -> str:
    return WORDS[text][LANGUAGES.index(language())].format(**facts)
