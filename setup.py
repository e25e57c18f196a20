"""Maps the two folders that stand at the top of the repository to import names below ``ort_metainfer``."""

from setuptools import find_namespace_packages, setup

FOLDER_OF = {
    "ort_metainfer": "ort_metainfer",
    "ort_metainfer.providers": "providers",
    "ort_metainfer.strategy_cache": "strategy_cache",
}


def packages() -> list[str]:
    """Every import package, the mapped folders and what lies below them included."""
    found = list(FOLDER_OF)
    for package, folder in FOLDER_OF.items():
        found += [f"{package}.{sub}" for sub in find_namespace_packages(folder, exclude=["*__pycache__*"])]
    return found


setup(packages=packages(), package_dir=FOLDER_OF)
