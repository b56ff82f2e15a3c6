"""`ostools --help` lists the commands under headings: what each is for."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class Panels(TyperGroup):
    """A group of commands. The help lists those of one heading together, in the order in which they were registered."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands into the help."""
        commands: dict[str, Any] = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        widest = max(map(len, commands))
        width = formatter.width - 6 - widest
        for heading in dict.fromkeys(command.rich_help_panel for command in commands.values()):
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        # Names of equal width, so that the columns of all headings stand under each other.
                        (name.ljust(widest), command.get_short_help_str(width))
                        for name, command in commands.items()
                        if command.rich_help_panel == heading
                    ]
                )
