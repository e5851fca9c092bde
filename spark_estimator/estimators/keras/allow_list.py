"""What the files of a Keras model may hold when they are read without trust: Keras 3's classes that only compute.

A ``.keras`` file names the classes that Keras makes of it. Keras' safe mode refuses some that run code. Here it is the
other way round: what these tables do not name is refused. Keras 2 is refused as a
whole: its safe mode imports any module that a file names.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Collection, Iterator
from typing import Any

from spark_estimator.errors import DataError

_MEMBERS = ("config.json", "metadata.json", "model.weights.h5")
#: Words of a layer such as StringLookup, which reads them as text.
_VOCABULARY = re.compile(r"assets(/\w+)+/vocabulary\.txt")
#: Values, as Keras' JSON has them.
_VALUES = frozenset({"__tensor__", "__numpy__", "__bytes__", "__slice__", "__ellipsis__", "__keras_tensor__"})
#: [modules] the names of Keras' classes. Not among them are those that run code of a file (Lambda, TFSMLayer,
#: TorchModuleWrapper, JaxLayer, FlaxLayer), and operations that call functions.
CLASSES = {
    module: frozenset(names.split())
    for module, names in {
        "keras": "DTypePolicy FloatDTypePolicy Model Sequential",
        "keras.src.models.functional": "Functional",
        "keras.layers": """
            Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
            AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention AlphaDropout Attention
            AugMix AutoContrast Average AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization
            Bidirectional CategoryEncoding CenterCrop Concatenate ContrastLimitedAdaptiveHistogramEqualization Conv1D
            Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D
            Cropping2D Cropping3D CutMix Dense DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU
            EinsumDense Embedding Equalization Flatten GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D
            GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D
            GroupNormalization GroupQueryAttention HashedCrossing Hashing Identity InputLayer IntegerLookup LSTM
            LSTMCell LayerNormalization LeakyReLU Masking MaxNumBoundingBoxes MaxPooling1D MaxPooling2D MaxPooling3D
            Maximum MelSpectrogram Minimum MixUp MultiHeadAttention Multiply Normalization PReLU Permute Pipeline
            RMSNormalization RNN RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast
            RandomCrop RandomElasticTransform RandomErasing RandomFlip RandomGaussianBlur RandomGrayscale RandomHue
            RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation RandomSharpness
            RandomShear RandomTranslation RandomZoom ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding
            STFTSpectrogram SeparableConv1D SeparableConv2D SimpleRNN SimpleRNNCell Softmax Solarization
            SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells StringLookup
            Subtract TextVectorization TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D Wrapper
            ZeroPadding1D ZeroPadding2D ZeroPadding3D""",
        "keras.losses": """
            BinaryCrossentropy BinaryFocalCrossentropy CTC CategoricalCrossentropy CategoricalFocalCrossentropy
            CategoricalGeneralizedCrossEntropy CategoricalHinge Circle CosineSimilarity Dice Hinge Huber KLDivergence
            LogCosh MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson
            SparseCategoricalCrossentropy SquaredHinge Tversky""",
        "keras.metrics": """
            AUC Accuracy BinaryAccuracy BinaryCrossentropy BinaryIoU CategoricalAccuracy CategoricalCrossentropy
            CategoricalHinge ConcordanceCorrelation CosineSimilarity F1Score FBetaScore FalseNegatives FalsePositives
            Hinge IoU KLDivergence LogCoshError Mean MeanAbsoluteError MeanAbsolutePercentageError MeanIoU
            MeanMetricWrapper MeanSquaredError MeanSquaredLogarithmicError OneHotIoU OneHotMeanIoU PearsonCorrelation
            Poisson Precision PrecisionAtRecall R2Score Recall RecallAtPrecision RootMeanSquaredError
            SensitivityAtSpecificity SparseCategoricalAccuracy SparseCategoricalCrossentropy
            SparseTopKCategoricalAccuracy SpecificityAtSensitivity SquaredHinge Sum TopKCategoricalAccuracy
            TrueNegatives TruePositives""",
        "keras.optimizers": """
            Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion LossScaleOptimizer MultiOptimizer Muon Nadam
            OptimizerMap RMSprop SGD ScheduleFreeAdamW""",
        # How the torch backend names the same optimizers.
        **{
            f"keras.src.backend.torch.optimizers.torch_{name.lower()}": name
            for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Nadam", "RMSprop", "SGD")
        },
        "keras.optimizers.schedules": """
            CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay PiecewiseConstantDecay PolynomialDecay""",
        "keras.initializers": """
            Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity LecunNormal LecunUniform Ones Orthogonal
            RandomNormal RandomUniform STFT TruncatedNormal VarianceScaling Zeros""",
        "keras.regularizers": "L1 L1L2 L2 OrthogonalRegularizer",
        "keras.constraints": "MaxNorm MinMaxNorm NonNeg UnitNorm",
        "keras.dtype_policies": """
            AWQDTypePolicy DTypePolicyMap GPTQDTypePolicy Int4DTypePolicy QuantizedDTypePolicy
            QuantizedFloat8DTypePolicy""",
        "keras.quantizers": """
            AbsMaxQuantizer Float8QuantizationConfig Int4QuantizationConfig Int8QuantizationConfig""",
        "keras.random": "SeedGenerator",
        # Operations on the tensors of a functional model: ``x + y``, ``keras.ops.sin(x)``.
        "keras.src.ops.numpy": """
            Abs Absolute Add All AllClose Amax Amin Angle Any Append Arange Arccos Arccosh Arcsin Arcsinh Arctan Arctan2
            Arctanh Argmax Argmin Argpartition Argsort Array ArraySplit Average Bincount BitwiseAnd BitwiseInvert
            BitwiseLeftShift BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor BroadcastTo Cbrt Ceil Clip Concatenate
            Conj Conjugate Copy Corrcoef Correlate Cos Cosh CountNonzero Cross Cumprod Cumsum Deg2rad Diag Diagflat
            Diagonal Diff Digitize Divide DivideNoNan Dot Dsplit Dstack Einsum EmptyLike Equal Exp Exp2 ExpandDims Expm1
            Fabs Flip Fliplr Flipud Floor FloorDivide Fmax Fmin Fmod Full FullLike Gcd Geomspace GetItem Greater
            GreaterEqual Heaviside Histogram Hsplit Hstack Hypot I0 Imag Inner IsIn Isclose Isfinite Isinf Isnan
            Isneginf Isposinf Isreal Kron Lcm Ldexp LeftShift Less LessEqual Linspace Log Log10 Log1p Log2 Logaddexp
            Logaddexp2 LogicalAnd LogicalNot LogicalOr LogicalXor Logspace Matmul Max Maximum Mean Median Meshgrid Min
            Minimum Mod Moveaxis Multiply NanToNum Nanargmax Nanargmin Nancumprod Nancumsum Nanmax Nanmean Nanmedian
            Nanmin Nanpercentile Nanprod Nanquantile Nanstd Nansum Nanvar Ndim Negative Nextafter Nonzero NotEqual
            OnesLike Outer Pad Percentile Power Prod Ptp Quantile Rad2deg Ravel Real Reciprocal Repeat Reshape
            RightShift Roll Rot90 Round SearchSorted Select Sign Signbit Sin Sinc Sinh Size Slogdet Sort Split Sqrt
            Square Squeeze Stack Std Subtract Sum Swapaxes Take TakeAlongAxis Tan Tanh Tensordot Tile Trace Transpose
            Trapezoid Tril Triu TrueDivide Trunc Unique UnravelIndex Vander Var Vdot View Vsplit Vstack Where ZerosLike
            """,
        "keras.src.ops.nn": """
            AdaptiveAveragePool AdaptiveMaxPool AveragePool BatchNorm BinaryCrossentropy CTCDecode CTCLoss
            CategoricalCrossentropy Celu Conv ConvTranspose DepthToSpace DepthwiseConv DotProductAttention Elu Fold Gelu
            Glu HardShrink HardSigmoid HardSilu HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax MaxPool Moments
            MultiHot Normalize OneHot PSNR Polar RMSNorm Relu Relu6 Selu SeparableConv Sigmoid Silu SoftShrink Softmax
            Softplus Softsign SpaceToDepth SparseCategoricalCrossentropy SparsePlus SparseSigmoid Sparsemax Squareplus
            TanhShrink Threshold Unfold""",
        "keras.src.ops.math": """
            CDist Erf Erfc Erfinv ExtractSequences FFT FFT2 IFFT2 IRFFT ISTFT InTopK Logdet Logsumexp RFFT Rsqrt STFT
            SegmentMax SegmentMin SegmentProd SegmentReduction SegmentSum TopK ViewAsComplex ViewAsReal""",
        "keras.src.ops.linalg": """
            Cholesky CholeskyInverse Det Eig Eigh Inv Lstsq LuFactor MatrixRank Norm Pinv Qr SVD Solve
            SolveTriangular""",
        "keras.src.ops.image": """
            AffineTransform CropImages ElasticTransform ExtractPatches GaussianBlur HSVToRGB MapCoordinates PadImages
            PerspectiveTransform RGBToGrayscale RGBToHSV Resize SSIM ScaleAndTranslate SobelEdges""",
        "keras.src.ops.einops": "Rearrange",
        "keras.src.ops.core": """
            Cast ConvertToTensor SaturateCast Scatter ScatterUpdate Slice SliceUpdate StopGradient Unstack""",
    }.items()
}
_FUNCTION_NAMES = """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid
    log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid
    sparsemax squareplus swish tanh tanh_shrink threshold
    binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
    categorical_generalized_cross_entropy categorical_hinge circle cosine_similarity ctc dice hinge huber kl_divergence
    log_cosh mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error
    poisson sparse_categorical_crossentropy squared_hinge tversky
    binary_accuracy categorical_accuracy concordance_correlation pearson_correlation sparse_categorical_accuracy
    sparse_top_k_categorical_accuracy top_k_categorical_accuracy
"""
#: Keras' functions, which it writes with the module "builtins".
FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_OF_FUNCTIONS = ("builtins", "keras.activations", "keras.losses", "keras.metrics")


def find_foreign_names(config: Any, user_names: Collection[str]) -> list[str]:
    """Return, in alphabetical order, what a configuration in Keras' JSON names that is neither in the tables nor
    known.

    Args:
        user_names: names of the user's classes and functions, which were passed, or registered in this process.
    """
    result = set()
    rest = [config]
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            if "class_name" in item and not _is_allowed(item, user_names):
                result.add(_describe(item))
            rest.extend(item.values())
        elif isinstance(item, list):
            rest.extend(item)
    return sorted(result)


def _is_allowed(item: dict[str, Any], user_names: Collection[str]) -> bool:
    """Return whether Keras would make of the item a value, an object of the user's own, or one in the tables."""
    name, config = item["class_name"], item.get("config")
    if not isinstance(name, str):
        return False
    if name in _VALUES:
        return True
    module, registered = item.get("module", ""), item.get("registered_name", name)
    # Without a module Keras takes the item for one of Keras 2, and has other rules for names.
    if "module" not in item or not all(isinstance(each, (str, type(None))) for each in (module, registered)):
        return False
    if name == "function":
        if not isinstance(config, str):
            return False
        # Keras finds a function that was registered as "package>name" by its name alone.
        is_known = config in user_names or any(each.endswith(f">{config}") for each in user_names)
        return is_known or (module in _OF_FUNCTIONS and config in FUNCTIONS and registered in (None, name, config))
    if registered in user_names:
        return True
    # A vocabulary that is a text is the path of a file.
    names_file = isinstance(config, dict) and isinstance(config.get("vocabulary"), str)
    return name in CLASSES.get(module or "", ()) and registered in (None, name) and not names_file


def _describe(item: dict[str, Any]) -> str:
    name = item["class_name"]
    if name in ("__lambda__", "Lambda"):
        return "a Lambda"
    words = item.get("config") if name == "function" else item.get("registered_name") or name
    return str(words)[:100]


def check_archive(content: bytes) -> None:
    """Raise DataError if a ``.keras`` file holds more than a configuration, numbers and vocabularies."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        others = [name for name in names if name not in _MEMBERS and not _VOCABULARY.fullmatch(name)]
        if others or len(set(names)) < len(names):
            raise DataError(f"it holds {', '.join(map(repr, others)) or 'a file twice'}, which Keras 3 does not write")
        weights = archive.read("model.weights.h5") if "model.weights.h5" in names else b""
    for flaw in _find_flaws(weights):
        raise DataError(f"its model.weights.h5 {flaw}, and Keras writes numbers only")


def _find_flaws(weights: bytes) -> Iterator[str]:
    """Yield what an HDF5 file holds besides groups of numbers: it can name other files."""
    import h5py

    with h5py.File(io.BytesIO(weights)) as file:
        groups, seen = [file["/"]], set()
        while groups:
            group = groups.pop()
            address = h5py.h5o.get_info(group.id).addr
            if address in seen:  # a group may hold itself
                continue
            seen.add(address)
            for name in group:
                if type(group.get(name, getlink=True)) is not h5py.HardLink:
                    yield f"has a link at {name!r}"
                    continue
                item = group[name]
                if isinstance(item, h5py.Group):
                    groups.append(item)
                elif not isinstance(item, h5py.Dataset) or item.external or item.is_virtual or item.dtype.kind == "O":
                    yield f"has no array of its own at {name!r}"
