"""What pyproject.toml cannot say: C to compile where there is a compiler. Without one mbcal is complete, and slower."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "mbcal.kernels.native._score",
            ["src/mbcal/kernels/native/score.c", "src/mbcal/kernels/native/names.c"],
            depends=["src/mbcal/kernels/native/kernel.h"],
            # nothing is trapped, so clamps may become vector code; NaN and infinity keep their meaning
            extra_compile_args=["-O3", "-fno-trapping-math"],
            optional=True,
        )
    ]
)
