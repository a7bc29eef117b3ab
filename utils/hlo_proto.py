"""Protobuf messages of HLO modules and of TpuGraphs' raw ``.pb`` files, built in code.

Only the fields that `utils.hlo` reads are described; the protobuf library skips all others (for
example the values of constants). So neither TensorFlow nor generated code is needed. The messages
live in a descriptor pool of their own and cannot clash with those of an installed XLA.

Sources: ``xla/service/hlo.proto`` and ``xla/xla_data.proto`` of OpenXLA, and
``tpu_graphs/proto/tuning.proto`` of the TpuGraphs release. Message names are not on the wire, so
nested messages are listed flat; enums are read as the int32 that they are on the wire.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Message -> its fields, "number type name"; a star marks a repeated field.
MESSAGES: dict[str, str] = {
    "TuningData": "1 ModuleTuningData* modules",
    "ModuleTuningData": """1 HloModuleProto module, 2 uint64 fingerprint, 3 ConfigProfile* runs,
        4 uint64* config_index_to_node""",
    "ConfigProfile": """1 HloOpConfig op_config, 2 HloModuleConfig module_config, 3 bool error,
        4 ExecutionProfile profile, 5 bool is_default""",
    "HloOpConfig": "1 TileSizeConfig tile_size_config",
    "TileSizeConfig": """1 int64* kernel_bounds, 2 int64* output_bounds, 3 int64* input_bounds,
        4 int64* iteration_bounds""",
    "HloModuleConfig": "1 LayoutConfig layout_config",
    "LayoutConfig": "1 NodeLayoutConfig* nodes",
    "NodeLayoutConfig": "1 TensorLayoutConfig* tensors",
    "TensorLayoutConfig": "1 int32* dims",
    "ExecutionProfile": "3 int64 compute_cycle_count, 4 int64 compute_time_ns",
    "HloModuleProto": """1 string name, 2 string entry_computation_name,
        3 HloComputationProto* computations, 5 int64 id, 6 int64 entry_computation_id""",
    "HloComputationProto": """1 string name, 2 HloInstructionProto* instructions, 5 int64 id,
        6 int64 root_id""",
    "HloInstructionProto": """1 string name, 2 string opcode, 3 ShapeProto shape,
        7 OpMetadata metadata, 9 int64 parameter_number, 13 int64 tuple_index,
        14 int64* dimensions, 15 Window window,
        16 ConvolutionDimensionNumbers convolution_dimension_numbers,
        17 SliceDimensions* slice_dimensions, 20 int64* dynamic_slice_sizes,
        21 PaddingConfig padding_config, 28 string custom_call_target,
        30 DotDimensionNumbers dot_dimension_numbers, 35 int64 id, 36 int64* operand_ids,
        38 int64* called_computation_ids, 50 int64 feature_group_count,
        58 int64 batch_group_count, 60 bool is_stable""",
    "OpMetadata": "1 string op_type, 2 string op_name",
    "SliceDimensions": "1 int64 start, 2 int64 limit, 3 int64 stride",
    "ShapeProto": """2 int32 element_type, 3 int64* dimensions, 4 ShapeProto* tuple_shapes,
        5 LayoutProto layout, 6 bool* is_dynamic_dimension""",
    "LayoutProto": "1 int64* minor_to_major",
    "Window": "1 WindowDimension* dimensions",
    "WindowDimension": """1 int64 size, 2 int64 stride, 3 int64 padding_low,
        4 int64 padding_high, 5 int64 window_dilation, 6 int64 base_dilation,
        7 bool window_reversal""",
    "ConvolutionDimensionNumbers": """3 int64 kernel_input_feature_dimension,
        4 int64 kernel_output_feature_dimension, 6 int64* kernel_spatial_dimensions,
        7 int64 input_batch_dimension, 8 int64 input_feature_dimension,
        9 int64 output_batch_dimension, 10 int64 output_feature_dimension,
        11 int64* input_spatial_dimensions, 12 int64* output_spatial_dimensions""",
    "DotDimensionNumbers": """1 int64* lhs_contracting_dimensions,
        2 int64* rhs_contracting_dimensions, 3 int64* lhs_batch_dimensions,
        4 int64* rhs_batch_dimensions""",
    "PaddingConfig": "1 PaddingConfigDimension* dimensions",
    "PaddingConfigDimension": """1 int64 edge_padding_low, 2 int64 edge_padding_high,
        3 int64 interior_padding""",
}

# xla.PrimitiveType by number, of the types that have a column in node_feat.
PRIMITIVE_TYPES: dict[int, str] = dict(
    enumerate(
        """invalid_type pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 tuple opaque_type c64 bf16
        token c128""".split()
    )
)


def message_classes() -> dict[str, type]:
    """Builds the message classes of `MESSAGES`, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tpu_graphs_reader.proto", package="tpu_graphs_reader", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for entry in fields.split(","):
            number, kind, name = entry.split()
            field = described.field.add(name=name, number=int(number))
            field.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{file.package}.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
        for name in MESSAGES
    }


CLASSES = message_classes()
