import json

import click


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of recipes and of silos' own files."""
    from fl_labelskew_plugins.recipe.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
