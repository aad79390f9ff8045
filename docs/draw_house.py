"""Draws the rooms of fl_sketch and what they import, from the imports themselves.

    python docs/draw_house.py

A room is a folder of fl_sketch. It stands on the floor above the highest room that it
imports. An arrow goes from a room to what it imports, unless another arrow leads there.
"""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "fl_sketch"
PICTURE = ROOT / "docs" / "_static" / "house.svg"
WIDTH, HEIGHT, GAP, FLOOR = 118, 40, 26, 84  # of rooms, in pixels


def imports():
    """Returns the names of the rooms that each room imports."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    first, *rest = f"{node.module}.{alias.name}".split(".")
                    if first == "fl_sketch" and rest and (PACKAGE / rest[0]).is_dir():
                        found.setdefault(room, set()).add(rest[0])
        found.setdefault(room, set()).discard(room)
    return found


def floors(below):
    """Returns the rooms of each floor, from the ground up."""
    heights = {}

    def height(room):
        if room not in heights:
            heights[room] = 1 + max(map(height, below[room]), default=-1)
        return heights[room]

    rooms = sorted(below, key=lambda room: (height(room), room))
    return [
        [room for room in rooms if heights[room] == floor]
        for floor in range(1 + max(heights.values()))
    ]


def direct(below):
    """Returns the pairs of rooms between which no other room stands."""

    def reached(room):
        return below[room].union(*map(reached, below[room]))

    return [
        (room, other)
        for room in sorted(below)
        for other in sorted(below[room])
        if not any(other in reached(one) for one in below[room] - {other})
    ]


def drawn(below):
    """Returns the picture as svg."""
    levels = floors(below)
    widest = max(map(len, levels))
    width, height = widest * (WIDTH + GAP) + GAP, len(levels) * FLOOR
    at = {}
    for floor, rooms in enumerate(levels):
        start = (width - len(rooms) * (WIDTH + GAP) + GAP) / 2
        for place, room in enumerate(rooms):
            at[room] = start + place * (WIDTH + GAP), height - (floor + 1) * FLOOR + 22
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="15">',
        '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3" '
        'orient="auto"><path d="M0,0 L7,3 L0,6 z" fill="#999"/></marker></defs>',
    ]
    for room, other in direct(below):
        (x, y), (u, v) = at[room], at[other]
        lines.append(
            f'<line x1="{x + WIDTH / 2:.0f}" y1="{y + HEIGHT:.0f}" '
            f'x2="{u + WIDTH / 2:.0f}" y2="{v:.0f}" stroke="#999" '
            'marker-end="url(#tip)"/>'
        )
    for room, (x, y) in at.items():
        lines.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
            'fill="#eef3fa" stroke="#35577d"/>'
            f'<text x="{x + WIDTH / 2:.0f}" y="{y + 26:.0f}" text-anchor="middle">'
            f"{room}</text>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(imports()))
