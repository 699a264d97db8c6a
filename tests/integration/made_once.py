"""What a process makes for its admin port and keeps: made when this is imported, in a fork server for all its forks."""

from gateway.admin import port
from gateway.admin.page_files import StaticFiles

StaticFiles(made={port.MODULE: port.fields_module()})
