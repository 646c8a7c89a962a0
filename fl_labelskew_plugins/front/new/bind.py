"""The command ``labelskew silo data``."""

import os
from pathlib import Path

from fl_labelskew_registry import LabelSkewError, mistake

from fl_labelskew_plugins.machine.files import write_text
from fl_labelskew_plugins.machine.text import clean
from fl_labelskew_plugins.recipe import parse, yaml
from fl_labelskew_plugins.runtimes.silo import facts


def bind(file: Path, place: Path) -> facts.SiloData:
    """Write a silo's data path into its own file; raise LabelSkewError unless all its recipes fit the data."""
    where, text = clean(file, 4096), parse.read_text(file)
    listing = parse.recipes_naming(file)
    if not listing:
        use = "a file listed in client_specific_args.data_silo_config of a recipe in the same folder"
        raise mistake(where, "is not a silo's own file", use)
    if not os.path.exists(place):
        raise mistake(clean(place, 4096), "does not exist", "the file or folder of this silo's data")
    try:
        changed = yaml.put(text, "data_args", "data_cache_dir", str(place))
    except yaml.YamlError as error:
        raise mistake(where, str(error), "the recipe's data_args in it") from None
    for recipe_file, rank in listing:
        base = parse.load(recipe_file)
        recipe = parse.silo(base, rank)
        form = {"data_cache_dir": str(place), "input_shape": base.data.input_shape, "classes": base.data.classes}
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update=form)})
        silo = facts.load(recipe, rank - 1)
        classes, source = facts.server_classes(base, None), f"in {clean(recipe_file.name)}"
        if mismatch := facts.differing(silo.data.class_names, classes, source):
            raise LabelSkewError(f"{where}: {mismatch}")
    write_text(file, changed)
    return silo
