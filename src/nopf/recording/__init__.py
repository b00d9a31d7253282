"""Recordings and live streams: from files or lines to observations, and to estimates and back."""

from nopf.filters.posterior import estimate_names as estimate_names
from nopf.filters.posterior import estimate_rows as estimate_rows
from nopf.recording.accuracy import Accuracy as Accuracy
from nopf.recording.accuracy import accuracy as accuracy
from nopf.recording.columns import BY_MODEL as BY_MODEL
from nopf.recording.columns import Columns as Columns
from nopf.recording.columns import DataError as DataError
from nopf.recording.columns import Named as Named
from nopf.recording.columns import choose_columns as choose_columns
from nopf.recording.estimate import filter_recording as filter_recording
from nopf.recording.estimate import oddities as oddities
from nopf.recording.estimate import start_time as start_time
from nopf.recording.live import filter_live as filter_live
from nopf.recording.live import live_rows as live_rows
from nopf.recording.proposal import imitation as imitation
from nopf.recording.proposal import proposal_for as proposal_for
from nopf.recording.reading import Recording as Recording
from nopf.recording.reading import Row as Row
from nopf.recording.reading import csv_rows as csv_rows
from nopf.recording.reading import json_rows as json_rows
from nopf.recording.reading import read_recording as read_recording
from nopf.recording.writing import csv_header as csv_header
from nopf.recording.writing import csv_table as csv_table
from nopf.recording.writing import format_csv as format_csv
from nopf.recording.writing import format_json as format_json
from nopf.recording.writing import write_estimates as write_estimates
